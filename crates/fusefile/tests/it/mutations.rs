//! Random damage to good files: the fuzz target's little brother, which needs no nightly toolchain.
//!
//! `FUSE_FUZZ_SECONDS=600 cargo test -p fuse-fusefile --release mutations` runs for ten minutes; without the variable a
//! fixed number of rounds is made, from a fixed seed.

use std::time::{Duration, Instant};

use crate::properties::everything;

/// Rounds in an ordinary run.
const ROUNDS: u64 = 1_500;
/// Largest input.
const MAX_BYTES: usize = 4_096;

/// The corpus of the fuzz target.
fn corpus() -> Vec<Vec<u8>> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/check");
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

/// A xorshift generator: the same rounds on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end.max(1) as u64)).unwrap()
    }
}

/// One change: a byte, a piece gone, doubled, or taken from another file, or a token of YAML.
fn damage(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    const TOKENS: [&[u8]; 16] = [
        b": ", b"- ", b"\n", b"  ", b"&a ", b"*a", b"<<: ", b"|\n", b">\n", b"!!str ", b"[", b"}",
        b"\"", b"'", b"\xff", b"\n---\n",
    ];
    let at = random.below(bytes.len() + 1);
    let length = random.below(40).min(bytes.len() - at);
    match random.below(6) {
        0 if at < bytes.len() => bytes[at] = u8::try_from(random.below(256)).unwrap(),
        1 => drop(bytes.drain(at..at + length)),
        2 => {
            let piece = bytes[at..at + length].to_vec();
            bytes.splice(at..at, piece);
        }
        3 => {
            let other = &corpus[random.below(corpus.len())];
            let from = random.below(other.len());
            let to = (from + random.below(200)).min(other.len());
            bytes.splice(at..at, other[from..to].iter().copied());
        }
        _ => {
            let token = TOKENS[random.below(TOKENS.len())];
            bytes.splice(at..at, token.iter().copied());
        }
    }
    bytes.truncate(MAX_BYTES);
}

#[test]
fn mutations_never_panic() {
    let corpus = corpus();
    assert!(corpus.len() > 10);
    for file in &corpus {
        everything(file);
    }
    let seconds = std::env::var("FUSE_FUZZ_SECONDS");
    let seconds = seconds.ok().and_then(|text| text.parse().ok());
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut random = Random(0x5eed_f00d_cafe_1234 ^ seconds.unwrap_or_default());
    let (mut round, mut compiled) = (0_u64, 0_u64);
    while end.map_or(round < ROUNDS, |end| Instant::now() < end) {
        let mut bytes = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(6) {
            damage(&mut bytes, &corpus, &mut random);
        }
        let outcome = std::panic::catch_unwind(|| everything(&bytes));
        let Ok(valid) = outcome else {
            panic!("round {round}: {:?}", String::from_utf8_lossy(&bytes));
        };
        compiled += u64::from(valid);
        round += 1;
    }
    // Damage that leaves nothing valid, or nothing broken, would test half of the crate.
    assert!(compiled > 0 && compiled < round, "{compiled} of {round}");
    eprintln!("{round} files, {compiled} of them valid");
}

/// The work is linear: what is kept and said about a file does not grow faster than the file.
#[test]
fn what_comes_out_is_bounded_by_what_went_in() {
    let weight = |copies: usize| {
        let mut source = "version: 1\nbuild:\n".to_owned();
        source.extend(std::iter::repeat_n(
            "- run: make\n  inputs: [a]\n  wrong: 1\n",
            copies,
        ));
        let checked = fuse_fusefile::check("F", source.as_bytes(), None);
        let said: usize = checked
            .problems
            .iter()
            .map(|problem| problem.to_string().len())
            .sum();
        (said, checked.document.file.build.len())
    };
    let (small, kept) = weight(100);
    assert_eq!(kept, 100);
    let (large, kept) = weight(10_000);
    assert_eq!(kept, 10_000);
    assert!(small > 1_000 && large < small * 10, "{small} {large}");
}
