"""The parts of report.html: charts, tables and the page that holds them."""
