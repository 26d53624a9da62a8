# Sourced by set_up.sh and set_up_beside.sh: runs pip and shows its progress.

# pip holds open what it starts; none of it needs our lock.
install() {
  .venv/bin/python -m pip --disable-pip-version-check install \
    --no-deps --no-build-isolation "$@" 9<&-
}

# usage: install_lock DIRECTORY LOCK [PIP_OPTION]...
#
# A line on a terminal shows every second how far pip is; elsewhere a line is
# printed per half and minute. DIRECTORY/pip.log keeps pip's own output.
install_lock() {
  local directory="$1" lock="$2" log="$1/pip.log"
  local total found installed steps text quarter printed=0 due=60 status=0 pip
  total="$(grep -c '^[^ #]' "$lock")"
  # In a process group of its own, so that whatever pip starts ends with us. What
  # it had downloaded then goes with DIRECTORY. It keeps our lock while it runs.
  pip=
  trap '[[ -z $pip ]] || { kill -- "-$pip" && wait "$pip"; } 2>/dev/null || true' EXIT
  set -m
  TMPDIR="$PWD/$directory" install --progress-bar off --no-input \
    --require-hashes -r "$lock" "${@:3}" >"$log" 2>&1 </dev/null &
  pip=$!
  set +m
  while kill -0 "$pip" 2>/dev/null; do
    sleep 1
    found=("$directory"/lib/*/site-packages/*.dist-info)
    installed=$((${#found[@]} - 1)) # One is pip's own.
    read -r steps text < <(awk -v total="$total" -v installed="$installed" '
      /^(Collecting|Processing|Requirement already) / { reached++ }
      /^  (Downloading|Using cached) .*\)$/ {
        name = $0
        sub(/^  (Downloading|Using cached) /, " (", name)
        sub(/-.*\(/, ", ", name)
      }
      /^Installing/ { installing = 1 }
      END {
        if (!installing)
          printf "%d downloading %d of %d%s\n", reached, reached, total, name
        else if (installed)
          printf "%d %d of %d installed\n", total + installed, installed, total
        else
          printf "%d installing %d packages\n", total, total
      }' "$log") || true
    quarter=$((2 * steps / total))
    if [[ -t 2 ]]; then
      printf '\r\e[K%.79s' "Setting up $directory: $SECONDS s, $text" >&2
    elif ((quarter > printed || SECONDS > due)); then
      printed=$quarter due=$((SECONDS + 60))
      echo "Setting up $directory: $SECONDS s, $text" >&2
    fi
  done
  wait "$pip" || status=$?
  trap - EXIT
  [[ ! -t 2 ]] || printf '\r\e[K' >&2
  if ((status)); then
    tail -n 30 "$log" >&2
    echo "set-up: pip failed; its whole output is $log." >&2
    exit "$status"
  fi
  text="$(du --summarize --block-size=MB "$directory" | cut -f 1)" || text=
  echo "$directory: packages: $total${text:+, size: ${text%MB} MB}, $SECONDS s." >&2
}
