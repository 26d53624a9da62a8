"""Tables, plots and one HTML page from run directories."""
