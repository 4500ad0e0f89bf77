//! Random frames, through the same check as the fuzz target, which needs another compiler.

use proptest::prelude::*;
use taskyard_pool::frame_check;

/// Pieces of frames, valid and invalid ones.
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

/// Complete frames, so that some runs reach their start.
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
    fn no_frame_escapes_the_limits(
        lines in prop::collection::vec(
            prop_oneof![
                prop::sample::select(FRAMES.as_slice()).prop_map(String::from),
                prop::collection::vec(prop::sample::select(PIECES.as_slice()), 0..12).prop_map(|pieces| pieces.concat()),
                any::<String>(),
            ],
            0..12,
        )
    ) {
        frame_check::check(&lines.join("\n"));
    }
}
