"""Reads YAML 1.2 files; errors name file and line."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from fairlead.errors import InvalidSpec, NotFound

TWICE = "is given twice"


class _Loader(yaml.SafeLoader):
    """Safe YAML 1.2 loader that refuses duplicate keys.

    PyYAML follows YAML 1.1, where ``1e-3`` is text, ``on`` is true and ``1:4`` is sixty-four.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value} {TWICE}, first in line {seen[key.value]}", key.start_mark
                    )
                seen[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


def _use_yaml_1_2() -> None:
    _Loader.yaml_implicit_resolvers = {}  # drop the rules of YAML 1.1
    number = list("-+.0123456789")
    for kind, pattern, first in (
        ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
        ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
        ("int", r"^[-+]?(?:0|[1-9][0-9]*)$|^0x[0-9a-fA-F]+$", number),
        ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.inf$|^\.nan$", number),
        ("merge", r"^<<$", ["<"]),
    ):
        _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(pattern), first)


_use_yaml_1_2()


def read_yaml(path: Path) -> Any:
    """The document in the file."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise NotFound("there is no such file", field=str(path), fix="name the YAML file of the job") from None
    except UnicodeDecodeError:
        raise InvalidSpec("is not UTF-8 text", field=path.name, fix="name a YAML file in UTF-8") from None
    except OSError as error:
        problem = error.strerror or str(error)
        raise InvalidSpec(
            f"cannot be read: {problem}", field=path.name, fix="make it readable, or name another"
        ) from None
    except yaml.MarkedYAMLError as error:
        raise _marked(path.name, error) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidSpec(f"is not YAML: {error}", field=path.name, fix="check the file's indentation") from None


def _marked(name: str, error: yaml.MarkedYAMLError) -> InvalidSpec:
    mark = error.problem_mark or error.context_mark
    if isinstance(error, yaml.composer.ComposerError) and error.problem == "but found another document":
        line = f"{name}: line {mark.line + 1}" if mark is not None else name
        return InvalidSpec("starts a second document", field=line, fix="write one job per file")
    field = f"{name}: line {mark.line + 1}" if mark is not None else name
    context = f" {error.context}" if error.context else ""
    message = f"{error.problem or 'is not YAML'}{context}"
    fix = "keep one of them" if TWICE in message else "check indentation, colons and quotes"
    return InvalidSpec(message, field=field, fix=fix)
