//! Frames made by chance, through the same check as the fuzz target: it needs no other compiler.

#[path = "../../../../../fuzz/checks/pool_frames.rs"]
mod pool_frames;

use proptest::prelude::*;

/// Pieces that frames are made of, right ones and wrong ones.
const PIECES: [&str; 30] = [
    "input ",
    "add ",
    "options ",
    "start ",
    "start",
    "dance ",
    "{",
    "}",
    "\"filename\": ",
    "\"hash\": ",
    "\"restore\": true",
    "\"stream\": \"stdin\"",
    "\"main\": ",
    "\"a.asy\"",
    "\"../a.asy\"",
    "\"-x.asy\"",
    "\".asy\"",
    "\"duration\": ",
    "-1",
    "1e400",
    "3",
    "null",
    "\"format\": ",
    "\"svg\"",
    "\"{main}\"",
    "\"verbosity\": ",
    ", ",
    "\n",
    "\u{0}",
    "\u{1f980}",
];

/// Whole frames, so that a run comes to its start now and then.
const FRAMES: [&str; 6] = [
    "input {\"filename\": \"a.asy\"}\nbytes",
    "input {\"filename\": \"{main}.asy\"}\nbytes",
    "options {\"duration\": 3, \"format\": \"pdf\", \"verbosity\": 9}",
    "options {\"duration\": 1e300}",
    "start {\"main\": \"a.asy\"}",
    "start {}",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_a_client_says_leads_elsewhere(
        lines in prop::collection::vec(
            prop_oneof![
                prop::sample::select(FRAMES.as_slice()).prop_map(String::from),
                prop::collection::vec(prop::sample::select(PIECES.as_slice()), 0..12).prop_map(|pieces| pieces.concat()),
                any::<String>(),
            ],
            0..12,
        )
    ) {
        pool_frames::check(&lines.join("\n"));
    }
}
