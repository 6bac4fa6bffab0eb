//! Changed answers for tests with a fake companion: each change is drawn from a seed, which is printed.
//!
//! The first tier draws the same changes each time. `OSCTL_TEST_SEED=random` draws others, as the long tier does, and
//! `OSCTL_TEST_SEED=NUMBER` repeats them.

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::io::Write;
use std::ops::Range;
use std::sync::OnceLock;

/// A terminal's title, the clipboard, a control character of eight bits, another text direction, an invisible space.
pub(crate) const NASTY: &str =
    "\u{1b}]0;owned\u{7}\u{1b}]52;c;AAAA\u{7}\u{9b}2J\u{202e}\u{200b}\u{2066}";

const NUMBERS: [&str; 8] = [
    "18446744073709551615",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999999999",
    "1e999",
    "-1e308",
    "0.5",
    "-1",
];

const VALUES: [&str; 8] = [
    "null",
    "[]",
    "{}",
    "true",
    "\"\"",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "[[[]]]",
];

const FIRST_TIER: u64 = 1;

/// The seed of all random choices of this process.
pub(crate) fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let given = std::env::var("OSCTL_TEST_SEED").ok();
        let seed = match given.as_deref() {
            None => FIRST_TIER,
            Some("random") => u64::from(std::process::id()) << 32 | now(),
            Some(text) => text
                .parse()
                .expect("OSCTL_TEST_SEED is a number, or `random`"),
        };
        let told = format!("random choices begin with OSCTL_TEST_SEED={seed}\n");
        std::io::stderr().write_all(told.as_bytes()).unwrap();
        seed
    })
}

fn now() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap();
    u64::from(since.subsec_nanos())
}

/// Runs `cases` drawn from the seed.
pub(crate) fn for_each<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value)) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed().to_le_bytes());
    let mut runner = TestRunner::new_with_rng(
        Config {
            cases,
            failure_persistence: None,
            max_shrink_iters: 50,
            ..Config::default()
        },
        TestRng::from_seed(RngAlgorithm::ChaCha, &bytes),
    );
    let result = runner.run(&strategy, |value| {
        test(value);
        Ok(())
    });
    result.unwrap_or_else(|why| panic!("OSCTL_TEST_SEED={}: {why}", seed()));
}

/// One change of an answer, whatever its format.
#[derive(Debug, Clone)]
pub(crate) enum Mutation {
    Cut(Index),
    /// A very deep document instead of the body.
    Deep,
    Repeat(Index),
    Bytes(Vec<(Index, u8)>),
    /// Other numbers, also within texts.
    Number(Vec<(Index, usize)>),
    /// Texts become other values, or the reverse.
    Value(Vec<(Index, usize)>),
    /// Texts that control a terminal.
    Nasty(Index),
    /// Lines in another order.
    Lines(Index),
    /// Another body.
    Other(&'static str),
}

pub(crate) fn mutation() -> impl Strategy<Value = Mutation> {
    let some = |most: usize| prop::collection::vec((any::<Index>(), 0..8_usize), 1..most);
    prop_oneof![
        1 => any::<Index>().prop_map(Mutation::Cut),
        1 => Just(Mutation::Deep),
        1 => any::<Index>().prop_map(Mutation::Repeat),
        1 => prop::collection::vec((any::<Index>(), any::<u8>()), 1..6).prop_map(Mutation::Bytes),
        4 => some(4).prop_map(Mutation::Number),
        4 => some(3).prop_map(Mutation::Value),
        2 => any::<Index>().prop_map(Mutation::Nasty),
        1 => any::<Index>().prop_map(Mutation::Lines),
    ]
}

impl Mutation {
    pub(crate) fn apply(&self, body: &[u8]) -> Vec<u8> {
        let mut changed = body.to_vec();
        match self {
            Self::Other(text) => changed = text.as_bytes().to_vec(),
            Self::Cut(at) => changed.truncate(at.index(body.len() + 1)),
            Self::Deep => changed = "[".repeat(200_000).into_bytes(),
            Self::Repeat(at) => changed.extend_from_within(..at.index(body.len() + 1)),
            Self::Bytes(all) => {
                for (at, byte) in all.iter().filter(|_| !body.is_empty()) {
                    changed[at.index(body.len())] = *byte;
                }
            }
            Self::Number(all) => {
                for (at, which) in all {
                    replace(&mut changed, numbers, *at, NUMBERS[*which]);
                }
            }
            Self::Value(all) => {
                for (at, which) in all {
                    replace(&mut changed, texts, *at, VALUES[*which]);
                }
            }
            Self::Nasty(at) => replace(&mut changed, texts, *at, &format!("\"{NASTY}\"")),
            Self::Lines(at) => {
                let mut lines: Vec<&[u8]> = body.split_inclusive(|b| *b == b'\n').collect();
                let length = lines.len();
                lines.rotate_left(at.index(length.max(1)).min(length));
                lines.reverse();
                changed = lines.concat();
            }
        }
        changed
    }
}

/// Replaces one of the ranges that `find` returns with `text`.
fn replace(body: &mut Vec<u8>, find: fn(&[u8]) -> Vec<Range<usize>>, at: Index, text: &str) {
    let found = find(body);
    if !found.is_empty() {
        let place = found[at.index(found.len())].clone();
        body.splice(place, text.bytes());
    }
}

fn numbers(body: &[u8]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for at in (0..body.len()).filter(|at| body[*at].is_ascii_digit()) {
        match found.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => found.push(at..at + 1),
        }
    }
    found
}

fn texts(body: &[u8]) -> Vec<Range<usize>> {
    let quotes =
        (0..body.len()).filter(|at| body[*at] == b'"' && (*at == 0 || body[at - 1] != b'\\'));
    let quotes: Vec<usize> = quotes.collect();
    quotes
        .chunks_exact(2)
        .map(|pair| pair[0]..pair[1] + 1)
        .collect()
}
