"""The figures that tests of real models record are printed at the end, whatever pytest was asked to show."""

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for state in ("passed", "failed") for report in terminalreporter.getreports(state)]
    rows = [row for report in reports if report.when == "call" for row in report.user_properties]
    if rows:
        terminalreporter.section("figures")
        size = max(len(name) for name, _ in rows)
        for name, value in rows:
            terminalreporter.write_line(f"{name:{size}}  {value}")
