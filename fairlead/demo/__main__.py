"""The command ``python -m fairlead.demo``: options, signals and exit code. Leaves no process behind."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from fairlead.demo.participants import TENANTS, data_summary
from fairlead.demo.platform import DemoPlatform
from fairlead.demo.report import collect_report, print_report
from fairlead.demo.scenario import Scenario
from fairlead.demo.screen import Screen
from fairlead.errors import FairleadError

INTERRUPTED = 130

INTRODUCTION = """\
Three teams share four nodes. vision is entitled to half of them, reviews to a third, marketing to a sixth.
Together they want more than there is. Watch for:
  1. fair shares: every team gets its share, and jobs grow into devices that other teams do not use
  2. preemption: an urgent command of marketing takes the device of marketing's training, which resumes afterwards
  3. recovery: one node is killed (kill -9 of its manager); the training on it continues on its other workers
  4. results: every training ends with a model and its accuracy"""

NEXT_STEPS = """\
Next steps:
  fairlead up --nodes 4 --detach    start your own platform and log in to its page
  fairlead init my-job              write an example job, to replace its model by yours
  docs/tutorial.md                  a first session, step by step"""


def main(arguments: list[str] | None = None) -> int:
    """Run the demonstration. Returns 0 only if all checks of the report hold."""
    options = _options(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        return _run_demo(console, options)
    except KeyboardInterrupt:
        console.print("interrupted; the platform is down", style="yellow")
        return INTERRUPTED
    except FairleadError as error:
        fix = f"\n  fix: {error.fix}" if error.fix else ""
        sys.stderr.write(f"fairlead demo: {error}{fix}\n")
    except OSError as error:
        sys.stderr.write(f"fairlead demo: {error}\n")
    except subprocess.SubprocessError as error:
        sys.stderr.write(f"fairlead demo: {error}\n")
    return 1


def _run_demo(console: Console, options: argparse.Namespace) -> int:
    weights = ":".join(f"{tenant.weight:g}" for tenant in TENANTS)
    console.print(f"[bold]Fairlead[/]: three tenants with weights {weights} on four virtual nodes of this machine")
    console.print(f"\n{INTRODUCTION}\n", soft_wrap=True, markup=False)
    console.print(f"  {data_summary()}", soft_wrap=True, markup=False)
    with DemoPlatform(keep=options.keep) as platform, platform.client() as admin:
        console.print(f"  the platform is up at {admin.url} (home {platform.home})", soft_wrap=True)
        scenario = Scenario(platform, quick=options.quick)
        try:
            scenario.submit(admin)
            with Screen(console) as screen:
                scenario.run(admin, screen.show)
            document = collect_report(scenario, admin)
        except FairleadError:
            console.print(f"  the platform's log: {platform.keep_log(options.out)}", soft_wrap=True)
            raise
    print_report(console, document)
    _save_report(console, document, options.out)
    console.print(f"\n{platform.instructions() if options.keep else NEXT_STEPS}", soft_wrap=True, markup=False)
    return 0 if all(document["checks"].values()) else 1


def _save_report(console: Console, document: dict[str, Any], folder: Path) -> None:
    figures = folder / "report.json"
    figures.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    console.print(f"\n  figures: {figures}", soft_wrap=True)
    try:
        from fairlead.demo.plot import draw

        draw(document, folder / "shares.png")
    except ModuleNotFoundError as error:
        raise FairleadError(f"no plot without {error.name}", fix="pip install 'fairlead[demo]'") from None
    console.print(f"  plot of the shares over time: {folder / 'shares.png'}", soft_wrap=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fairlead.demo", description="Three tenants share four nodes.")
    parser.add_argument("--quick", action="store_true", help="train less; takes under a minute")
    parser.add_argument("--keep", action="store_true", help="leave the platform up afterwards")
    parser.add_argument("--out", type=Path, default=Path("demo-report"), help="folder of the report and the plot")
    return parser.parse_args(arguments)


def _interrupt(*_: object) -> NoReturn:
    """Make SIGTERM end the demonstration like Ctrl-C."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
