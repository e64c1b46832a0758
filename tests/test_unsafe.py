"""Unsafe code stands only at the addresses that CONTRIBUTING.md lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch

from program import ROOT

FOLDERS = ("rust", "benches", "fuzz")
LIST = re.compile(r"<!-- unsafe -->\n```\w*\n(?P<addresses>.*?)```\n<!-- end -->", re.DOTALL)
# What is not code: line comments, block comments, texts (raw ones too) and characters. A lifetime is no character.
NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|r(?P<hashes>#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*"|\'(?:\\[^\n]{1,8}?|[^\'\\])\'', re.DOTALL
)


def has_unsafe(text: str) -> bool:
    """Whether Rust source uses the word as code, and not only to forbid it."""
    return re.search(r"\bunsafe\b", NOT_CODE.sub(" ", text)) is not None


def sources() -> Iterator[str]:
    """Paths of all Rust files, from the root of the repository."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.rs")):
            yield path.relative_to(ROOT).as_posix()


def outside(files: dict[str, str], addresses: list[str]) -> tuple[list[str], list[str]]:
    """Files with unsafe code that no address names, and addresses without any such file."""
    unsafe = [path for path, text in files.items() if has_unsafe(text)]
    unlisted = [path for path in unsafe if not any(fnmatch(path, address) for address in addresses)]
    idle = [address for address in addresses if not any(fnmatch(path, address) for path in unsafe)]
    return unlisted, idle


def listed() -> list[str]:
    found = LIST.search((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert found is not None
    return [line.split()[0] for line in found["addresses"].splitlines() if line.strip()]


def test_unsafe_code_stands_at_listed_addresses_and_every_address_has_some() -> None:
    files = {path: (ROOT / path).read_text(encoding="utf-8") for path in sources()}
    assert len(files) > 100
    unlisted, idle = outside(files, listed())
    assert not unlisted, "find another way, or add the file to the list in CONTRIBUTING.md with a reason"
    assert not idle, "these addresses have no unsafe code and leave the list"


def test_the_word_is_found_in_code_alone() -> None:
    for code in (
        "unsafe { f() }",
        "unsafe impl Send for X {}",
        "fn f<'a>(x: &'a u8) { unsafe { g(x) } } // '",
        "'\\''; unsafe {}",
    ):
        assert has_unsafe(code), code
    texts = ('"unsafe"', 'r#"a "unsafe" b"#', '\'"\'; "unsafe"')
    for other in ("// unsafe", "/* unsafe\n */ fn f() {}", "#![forbid(unsafe_code)]", *texts):
        assert not has_unsafe(other), other


def test_a_new_place_and_a_place_that_is_left_are_noticed() -> None:
    files = {"rust/a/src/x.rs": "unsafe {}", "rust/b/src/y.rs": "fn f() {}", "rust/a/src/z/w.rs": "unsafe fn g() {}"}
    assert outside(files, ["rust/a/src/*"]) == ([], [])
    assert outside(files, ["rust/a/src/x.rs", "rust/b/src/y.rs"]) == (["rust/a/src/z/w.rs"], ["rust/b/src/y.rs"])
