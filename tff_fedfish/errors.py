"""The exception that the command line shows as a line, not as a trace."""


class UserError(Exception):
  """Bad arguments or bad input: one line that the user can act on.

  The message names what the user typed, what is required, what was found and
  what to do. `fedfish` prints it to standard error and exits with code 2.
  """
