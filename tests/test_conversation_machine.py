"""Whatever is done to a conversation, in whatever order: with speculation, without, and written by hand, all agree."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import quoth
from scripted import CHATML

N_CTX = 220
TEXTS = st.sampled_from(["", "a", "Hello the user", "the the the the ", "Ünïcode 👍", "<|im_end|>", "x" * 40])
SAMPLINGS = st.sampled_from(
    [
        quoth.Sampling(),
        quoth.Sampling(temperature=0.8, top_k=20, seed=1),
        quoth.Sampling(temperature=1.2, min_p=0.02, seed=2, repeat_penalty=1.3, frequency_penalty=0.2),
        quoth.Sampling(temperature=0.7, seed=3, logit_bias={258: 6.0, 97: 2.0}),
        quoth.Sampling(logit_bias={258: 4.0, 10: 3.0}, banned=[0, 1]),
    ]
)
STOPS = st.sampled_from([(), ("a",), (" ", "zz"), ("\n",), (97, "the")])


class Babbler:
    """Guesses at random, but always the same, and is right now and then."""

    def suggest(self, context: list[int], max_tokens: int) -> list[int]:
        x = len(context) * 2654435761 % 2**32
        n = x % 4
        return [context[-1 - (x >> (4 + i)) % min(len(context), 9)] for i in range(min(n, max_tokens))]

    def observe(self, committed: list[int]) -> None:
        pass


class Conversations(RuleBasedStateMachine):
    """One conversation three times: with the cascade, with a bad source, and plainly; and a list of what was said."""

    model: quoth.Model

    @initialize(system=st.sampled_from([None, "Be terse."]), overflow=st.sampled_from(["error", "trim"]))
    def begin(self, system: str | None, overflow: Any) -> None:
        self.overflow = overflow
        self.chats = [
            self.model.conversation(
                system=system, speculation=how, overflow=overflow, max_tokens=12, chat_template=CHATML
            )
            for how in (True, Babbler(), None)
        ]
        self.said: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]

    # -- by hand -------------------------------------------------------------------------------------------------------

    def prompt(self, said: list[dict[str, Any]]) -> list[int]:
        encode, ids = self.model.tokenizer.encode, []
        for message in said:
            content = message["content"]
            content = encode(content) if isinstance(content, str) else list(content)
            ids += [257, *encode(message["role"] + "\n"), *content, 258, *encode("\n")]
        return [*ids, 257, *encode("assistant\n")]

    def fitting(self, said: list[dict[str, Any]], room: int) -> list[dict[str, Any]] | None:
        """What is left of a conversation whose last message is new, if the context can hold it."""
        head = said[:1] if said[0]["role"] == "system" else []
        rest = said[len(head) :]
        while True:
            n = len(self.prompt([*head, *rest]))
            if self.overflow == "error":
                return [*head, *rest] if n <= N_CTX else None
            if n + min(room, N_CTX // 4) <= N_CTX or len(rest) == 1:
                return [*head, *rest] if n <= N_CTX else None
            rest = rest[2:]

    def turn(self, said, how, question, **options):
        """Let all of them answer, and compare with a decoder that knows nothing."""
        kept = self.fitting([*said, {"role": "user", "content": question}], options["max_tokens"])
        if kept is None:
            before = self.chats[0].messages
            for chat in self.chats:
                with pytest.raises(quoth.ContextFullError):
                    how(chat, question, **options)
                assert chat.messages == before
            return
        plain = {name: value for name, value in options.items() if name != "sampling"}
        expected = self.model.decoder(sampling=options["sampling"], speculation=None).generate(
            self.prompt(kept), **plain
        )
        for chat in self.chats:
            answer = how(chat, question, **options)
            chunks = list(answer)
            found = answer.result
            fields = ("text", "tokens", "finish_reason", "stop", "logprobs", "prompt_tokens")
            assert [getattr(found, name) for name in fields] == [getattr(expected, name) for name in fields]
            assert (found.stats.draws, found.stats.committed) == (expected.stats.draws, expected.stats.committed)
            assert "".join(chunk.text for chunk in chunks) == found.text
            own = self.kept(found) if isinstance(found.stop, str) else found.tokens
            assert chat.tokens == self.prompt(kept) + list(own)
            assert chat.decoder.history == chat.tokens[: len(chat.decoder.history)]
        self.said = [*kept, {"role": "assistant", "content": own}]
        self.agree()

    def kept(self, result: quoth.Result) -> list[int]:
        """What stays of an answer that a stop text cut off: the longest run of its tokens that the text begins with,
        and the rest of the text as the tokenizer has it."""
        decode, encode = self.model.tokenizer.decode, self.model.tokenizer.encode
        texts = [decode(result.tokens[:n]) for n in range(len(result.tokens) + 1)]
        n, text = max((n, text) for n, text in enumerate(texts) if result.text.startswith(text))
        return [*result.tokens[:n], *encode(result.text[len(text) :])]

    def agree(self) -> None:
        first, *others = self.chats
        assert [m["role"] for m in first.messages] == [m["role"] for m in self.said]
        for other in others:
            assert other.messages == first.messages
            n = min(other.decoder.cached_tokens, first.decoder.cached_tokens)
            shared = [a == b for a, b in zip(other.decoder.history, first.decoder.history, strict=False)]
            n = min(n, shared.index(False) if False in shared else n)
            assert other.decoder._core.same_prefix(first.decoder._core, n)

    # -- what may happen -----------------------------------------------------------------------------------------------

    @rule(
        question=TEXTS,
        sampling=SAMPLINGS,
        stop=STOPS,
        max_tokens=st.integers(1, 25),
        logprobs=st.sampled_from([None, 2]),
    )
    def send(self, question, sampling, stop, max_tokens, logprobs):
        options = {"sampling": sampling, "stop": stop, "max_tokens": max_tokens, "logprobs": logprobs}
        self.turn(self.said, quoth.Conversation.send, question, **options)

    @precondition(lambda self: len(self.said) > 1)
    @rule(question=TEXTS, sampling=SAMPLINGS, max_tokens=st.integers(1, 9))
    def edit(self, question, sampling, max_tokens):
        self.turn(self.said[:-2], quoth.Conversation.edit, question, sampling=sampling, max_tokens=max_tokens)

    @rule(question=TEXTS, sampling=SAMPLINGS, after=st.integers(1, 4))
    def leave(self, question, sampling, after):
        kept, *others = (self.fitting([*self.said, {"role": "user", "content": question}], room) for room in (12, 1))
        if kept is None or kept not in others:
            return  # how much is trimmed depends on how much is asked for
        streams = [chat.send(question, sampling=sampling) for chat in self.chats]
        got = []
        for _, chunk in zip(range(after), streams[0], strict=False):
            got += chunk.tokens
        streams[0].close()
        finished = streams[0].result.finish_reason is not None
        # The others hand out other chunks; they come to the same tokens by other ways.
        for chat in self.chats[1:]:
            chat.reply(question, sampling=sampling, max_tokens=12 if finished else len(got))
        self.said = [*kept, {"role": "assistant", "content": streams[0].result.tokens}]
        self.agree()

    @precondition(lambda self: len(self.said) > 1)
    @rule()
    def undo(self):
        for chat in self.chats:
            assert len(chat.undo()) == 2
        self.said = self.said[:-2]
        self.agree()

    @rule()
    def reset(self):
        for chat in self.chats:
            chat.reset()
        self.said = [message for message in self.said if message["role"] == "system"]
        self.agree()

    @rule()
    def fork(self):
        self.chats = [chat.fork() for chat in self.chats]
        self.agree()

    @rule()
    def reload(self):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "chat.json"
            self.chats[0].save(path)
            self.chats[0] = quoth.Conversation.load(path, self.model)
        self.agree()

    @rule(text=TEXTS)
    def refer(self, text):
        self.chats[0].add_reference(text)
        self.chats[2].add_reference(text)

    @rule(system=st.sampled_from([None, "Other.", "Be terse."]))
    def instruct(self, system):
        for chat in self.chats:
            chat.system = system
        self.said = [message for message in self.said if message["role"] != "system"]
        if system is not None:
            self.said.insert(0, {"role": "system", "content": system})
        self.agree()

    @precondition(lambda self: len(self.said) > 3)
    @rule(question=TEXTS)
    def rewrite(self, question):
        at = len(self.said) - 4
        for chat in self.chats:
            messages = chat.messages
            messages[at]["content"] = question
            chat.rewrite(messages)
        self.said[at] = {**self.said[at], "content": question}
        self.agree()


@pytest.fixture(autouse=True)
def _model(tiny_chat_path):
    Conversations.model = quoth.Model(tiny_chat_path, n_ctx=N_CTX, threads=1)


TestConversations = pytest.mark.usefixtures("_model")(Conversations.TestCase)
TestConversations.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
