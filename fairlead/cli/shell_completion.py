"""Shell completion: the scripts for bash, zsh and fish, and the candidates that they request at every Tab.

Candidates come from the verbs' declarations; names of jobs, tenants, nodes and tokens from the running platform.
Every error yields no candidates.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo, CommandInfo, OptionInfo

from fairlead.cli.fast_path import option_names
from fairlead.terminal import plain

if TYPE_CHECKING:
    Candidates = Iterable[tuple[str, str]]

ASK = "__complete"  # the scripts call: fairlead __complete WORD..., the word under the cursor last
FILES = ":files"
ANSWER_S = 1.0
MAX_JOBS = 200
_WORD = re.compile(r"[\w.:@+-]+")

SCRIPTS = {
    "bash": f"""_fairlead() {{
    local IFS=$'\\n' found
    found=$(fairlead {ASK} "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null | cut -f1)
    if [[ $found == "{FILES}" ]]; then
        compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}"))
    else
        COMPREPLY=($found)
    fi
}}
complete -F _fairlead fairlead""",
    "zsh": f"""#compdef fairlead
_fairlead() {{
    local -a found described
    local line
    found=("${{(@f)$(fairlead {ASK} "${{(@)words[2,CURRENT]}}" 2>/dev/null)}}")
    if [[ $found[1] == "{FILES}" ]]; then
        _files
        return
    fi
    for line in $found; do
        described+=("${{${{line%%$'\\t'*}}//:/\\\\:}}:${{line#*$'\\t'}}")
    done
    _describe fairlead described
}}
compdef _fairlead fairlead""",
    "fish": f"""function __fairlead_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found (fairlead {ASK} $words[2..] 2>/dev/null)
    if test "$found[1]" = "{FILES}"
        __fish_complete_path (commandline -ct)
    else
        printf '%s\\n' $found
    end
end
complete -c fairlead -f -a '(__fairlead_complete)'""",
}
WORDS = {
    "--role": ("admin", "tenant-admin", "member", "viewer", "scraper"),
    "--network": ("closed", "open"),
    "--sla": ("gold", "silver", "bronze", "none"),
    "--isolation": ("auto", "sandbox", "user", "none"),
    "--by": ("tenant", "user", "label", "job", "node", "device"),
    "SHELL": tuple(SCRIPTS),
}


def answer(app: typer.Typer, words: list[str]) -> int:
    """Print the candidates for the last word, one per line with a description; never an error."""
    try:
        found = list(candidates(app, words[:-1], words[-1] if words else ""))
    except Exception:  # noqa: BLE001 (the edge of the process: a Tab shows candidates or nothing)
        return 0
    sys.stdout.write("".join(f"{word}\t{plain(about)}\n" if about else f"{word}\n" for word, about in found))
    return 0


def candidates(app: typer.Typer, before: list[str], word: str) -> Candidates:
    """Completions of ``word`` after the words ``before``."""
    function: Callable[..., Any] | None = None
    verb = ""
    rest = list(before)
    while function is None:
        verbs, groups = _verbs(app), {str(info.name): info.typer_instance for info in app.registered_groups}
        if not rest:
            named = [*((name, _about(info)) for name, info in verbs.items()), *((name, "") for name in groups)]
            return [(name, about) for name, about in sorted(named) if name.startswith(word)]
        verb = rest.pop(0)
        if verb in groups and groups[verb] is not None:
            app = groups[verb]  # type: ignore[assignment]
        elif verb in verbs:
            function = verbs[verb].callback
        else:
            return []
    return _verb_candidates(verb, get_type_hints(function, include_extras=True), rest, word)


def _verbs(app: typer.Typer) -> dict[str, CommandInfo]:
    named = ((str(info.name or getattr(info.callback, "__name__", "")), info) for info in app.registered_commands)
    return {name: info for name, info in named if not info.hidden}


def _about(info: CommandInfo) -> str:
    return (getattr(info.callback, "__doc__", "") or "").strip().split("\n")[0].rstrip(".")


def _verb_candidates(verb: str, hints: Mapping[str, Any], rest: list[str], word: str) -> Candidates:
    """Completions within a verb: its options, the value of the previous option, or the next argument."""
    options: dict[str, tuple[Any, OptionInfo]] = {}
    places: list[tuple[Any, ArgumentInfo]] = []
    for hint in hints.values():
        kind, info = (*get_args(hint), None, None)[:2]
        if isinstance(info, OptionInfo) and not info.hidden:
            options |= dict.fromkeys(option_names(info), (kind, info))
        elif isinstance(info, ArgumentInfo):
            places.append((kind, info))
    if rest and rest[-1] in options and options[rest[-1]][0] is not bool:
        return _values(verb, rest[-1], options[rest[-1]][0], word)
    if word.startswith("-"):
        many = {name for name, (kind, _) in options.items() if "list" in str(kind)}
        free = (name for name in options if name not in rest or name in many)
        return [(name, str(options[name][1].help or "")) for name in sorted(free) if name.startswith(word)]
    taking = {name for name, (kind, _) in options.items() if kind is not bool}
    given = [one for place, one in enumerate(rest) if not one.startswith("-") and rest[place - 1 : place] not in
             [[name] for name in taking]]  # fmt: skip
    if not places:
        return []
    kind, argument = places[min(len(given), len(places) - 1)]
    return _values(verb, str(argument.metavar), kind, word) if len(given) < len(places) else []


def _values(verb: str, what: str, kind: Any, word: str) -> Candidates:
    """Possible values of an option or argument, if they can be listed."""
    if what in WORDS:
        return [(value, "") for value in WORDS[what] if value.startswith(word)]
    names = {"JOB": _jobs, "--job": _jobs, "NODE": _nodes, "TENANT": _tenants, "--tenant": _tenants, "-t": _tenants,
             "--parent": _tenants, "ID": _tokens}.get(what)  # fmt: skip
    if names is not None:
        known = names(verb)  # names with shell metacharacters are not offered
        return [(name, about) for name, about in known if name.startswith(word) and _WORD.fullmatch(name)]
    return [(FILES, "")] if str(Path.__name__) in str(kind) or "FILE" in what else []


def _ask(path: str, **params: Any) -> Any:
    """The platform's answer within a second."""
    from fairlead.cli.local_status import look

    found = look(path, params, timeout_s=ANSWER_S)
    if found is not None:
        return found
    from fairlead.cli.options import quiet_imports
    from fairlead.sdk.profile import locate

    quiet_imports()
    from fairlead.sdk.transport import Transport

    return Transport(locate(), ANSWER_S).call("GET", path, params=params, patient=False)


def _jobs(verb: str) -> Iterator[tuple[str, str]]:
    """Job ids, and job names, each of which means its newest job."""
    found = _ask("/jobs", limit=MAX_JOBS, **({"state": "active"} if verb == "cancel" else {}))["items"]
    yield from ((job["id"], f"{job['state']}, of {job['tenant']}") for job in found)
    yield from ((name, "newest job of this name") for name in dict.fromkeys(job["name"] for job in found))


def _tenants(verb: str) -> Iterator[tuple[str, str]]:
    return ((tenant["name"], f"weight {tenant['weight']:g}") for tenant in _ask("/tenants"))


def _nodes(verb: str) -> Iterator[tuple[str, str]]:
    return ((node["name"], node["state"]) for node in _ask("/nodes"))


def _tokens(verb: str) -> Iterator[tuple[str, str]]:
    valid = (token for token in _ask("/tokens") if token["revoked_s"] is None)
    return ((token["id"], token["label"] or token["role"]) for token in valid)
