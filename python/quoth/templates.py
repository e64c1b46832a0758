"""Chat templates by name, for models whose file has none.

In: a name. Out: a template's source. Each writes text alone: a system message where there is one, and turns of
users and assistants. Where a format knows no system message, it stands in front of the first user's.
"""

from __future__ import annotations

from typing import Final

__all__ = ["NAMED"]

_EACH: Final = "{% for message in messages %}"
_END: Final = "{% endfor %}{% if add_generation_prompt %}"

_TURNS: Final = (
    "{% if messages[0].role == 'system' %}{% set system, turns = messages[0].content | trim, messages[1:] %}"
    "{% else %}{% set system, turns = '', messages %}{% endif %}{% for message in turns %}"
)


def _user(before: str, after: str) -> str:
    """A user's turn with the system message in front of the first."""
    return (
        "{% if message.role == 'user' %}{{ " + before + " + (system + '\\n\\n' if loop.first and system else '')"
        " + message.content | trim + " + after + " }}{% else %}"
    )


NAMED: Final[dict[str, str]] = {
    "alpaca": (
        _EACH + "{{ {'user': '### Instruction:\\n', 'assistant': '### Response:\\n'}.get(message.role, '')"
        " + message.content | trim + '\\n\\n' }}" + _END + "{{ '### Response:\\n' }}{% endif %}"
    ),
    "chatml": (
        _EACH + "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}" + _END
        + "{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "gemma": (
        "{{ bos_token }}" + _TURNS + _user("'<start_of_turn>user\\n'", "'<end_of_turn>\\n'")
        + "{{ '<start_of_turn>model\\n' + message.content | trim + '<end_of_turn>\\n' }}{% endif %}" + _END
        + "{{ '<start_of_turn>model\\n' }}{% endif %}"
    ),
    "llama2": (
        _TURNS + "{% if message.role == 'user' %}{{ bos_token + '[INST] '"
        " + ('<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' if loop.first and system else '')"
        " + message.content | trim + ' [/INST]' }}{% else %}"
        "{{ ' ' + message.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "llama3": (
        "{{ bos_token }}" + _EACH + "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n'"
        " + message.content | trim + '<|eot_id|>' }}" + _END
        + "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}" + _TURNS + _user("'[INST] '", "'[/INST]'")
        + "{{ ' ' + message.content | trim + eos_token }}{% endif %}{% endfor %}"
    ),
    "phi3": (
        _EACH + "{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}" + _END
        + "{{ '<|assistant|>\\n' }}{% endif %}"
    ),
    "vicuna": (
        _EACH + "{{ {'user': 'USER: ', 'assistant': 'ASSISTANT: '}.get(message.role, '') + message.content | trim"
        " + (eos_token + '\\n' if message.role == 'assistant' else ' ') }}" + _END + "ASSISTANT:{% endif %}"
    ),
    "zephyr": (
        _EACH + "{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}" + _END
        + "{{ '<|assistant|>\\n' }}{% endif %}"
    ),
}  # fmt: skip
"""The templates."""
