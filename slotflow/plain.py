"""JSON and YAML that somebody else wrote: the value, or one clear error."""

import json
from typing import Any, Final

import yaml

from slotflow.errors import InputError

MAX_SETTINGS: Final = 1 << 20  # characters of a YAML text


class _Loader(yaml.SafeLoader):
    """Plain values without aliases, by which a short text can mean a value without end."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", mark)
        return super().compose_node(parent, index)


def parse_json(text: str | bytes, origin: str) -> Any:
    """Return the value of a JSON text.

    Args:
        text: in UTF-8, where bytes.
        origin: what to call it in a message.

    Raises:
        InputError: not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InputError(f"{origin}: not JSON that can be read: nested too deeply") from error
    except ValueError as error:  # a number of too many digits, too
        raise InputError(f"{origin}: not JSON: {shortened(error)}") from error


def parse_yaml(text: str, origin: str) -> Any:
    """Return the value of a YAML text: plain types, no aliases.

    Args:
        text: at most :data:`MAX_SETTINGS` characters.
        origin: what to call it in a message.

    Raises:
        InputError: not such a text.
    """
    if len(text) > MAX_SETTINGS:
        raise InputError(f"{origin}: {len(text)} characters; at most {MAX_SETTINGS} are read")
    try:
        return yaml.load(text, _Loader)
    except RecursionError as error:
        raise InputError(f"{origin}: not valid YAML: nested too deeply") from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:
        # besides its own, what dates, numbers and tags without a value raise in PyYAML
        raise InputError(f"{origin}: not valid YAML: {shortened(error, 400)}") from error


def shortened(value: object, most: int = 160) -> str:
    """Return the text of a value in one line that can be shown."""
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 3] + "..."
