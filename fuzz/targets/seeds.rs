//! Writes the sound files that the engine's tests begin with into a folder, for `gguf_open` to begin with.

#![allow(dead_code)]

#[path = "../../rust/engine/tests/hostile/dice.rs"]
mod dice;
#[path = "../../rust/engine/tests/hostile/seeds.rs"]
mod seeds;

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "corpus/gguf_open".into());
    std::fs::create_dir_all(&folder)?;
    for (name, bytes) in seeds::all() {
        std::fs::write(format!("{folder}/{}.gguf", name.replace(' ', "-")), bytes)?;
    }
    Ok(())
}
