"""The edge of ``python -m fairlead.demo``: options, signals, exit code; nothing is left running whatever happens."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from fairlead.demo.participants import TENANTS, about_data
from fairlead.demo.platform import DemoPlatform
from fairlead.demo.report import gather, tell
from fairlead.demo.screen import Screen
from fairlead.demo.story import Story
from fairlead.errors import FairleadError

INTERRUPTED = 130

STORY = """\
Three teams share four nodes: vision owns half of them, reviews a third, marketing a sixth. Together they want more.
What to watch:
  1. every team gets its share, and jobs grow into what others do not use
  2. an urgent command of marketing takes the place of its training, which goes on afterwards and loses nothing
  3. the manager of one node is killed (kill -9); the training on it goes on with its other workers, from where it was
  4. every job ends with a model and its accuracy"""

NEXT = """\
What next:
  fairlead up --nodes 4 --detach    start a platform of your own, and log in to its page
  fairlead init my-job              write a job with a model to replace by yours
  docs/tutorial.md                  a first session, step by step"""


def main(arguments: list[str] | None = None) -> int:
    """Play the demonstration; 0 only if every job finished, one grew and the one that lost its node recovered."""
    options = _options(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        return _play(console, options)
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


def _play(console: Console, options: argparse.Namespace) -> int:
    weights = ":".join(f"{tenant.weight:g}" for tenant in TENANTS)
    console.print(f"[bold]Fairlead[/]: three tenants of weights {weights} on four virtual nodes of this machine")
    console.print(f"\n{STORY}\n", soft_wrap=True, markup=False)
    console.print(f"  {about_data()}", soft_wrap=True, markup=False)
    with DemoPlatform(keep=options.keep) as platform, platform.client() as admin:
        console.print(f"  the platform is up at {admin.url}, in a home of its own ({platform.home})", soft_wrap=True)
        story = Story(platform, quick=options.quick)
        try:
            story.submit(admin)
            with Screen(console) as screen:
                story.play(admin, screen.show)
            document = gather(story, admin)
        except FairleadError:
            console.print(f"  the platform's log: {platform.keep_log(options.out)}", soft_wrap=True)
            raise
    tell(console, document)
    _keep(console, document, options.out)
    console.print(f"\n{platform.goodbye() if options.keep else NEXT}", soft_wrap=True, markup=False)
    return 0 if all(document["checks"].values()) else 1


def _keep(console: Console, document: dict[str, Any], folder: Path) -> None:
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
    parser.add_argument("--quick", action="store_true", help="train less: under a minute")
    parser.add_argument("--keep", action="store_true", help="leave the platform up, to look at it afterwards")
    parser.add_argument("--out", type=Path, default=Path("demo-report"), help="folder of the report and the plot")
    return parser.parse_args(arguments)


def _interrupt(*_: object) -> NoReturn:
    """SIGTERM ends the demonstration the same way as Ctrl-C."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
