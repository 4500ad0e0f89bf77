//! Checks that arbitrary frames of a client cause no panic, and that accepted ones obey the limits and the configuration.
//!
//! Used by the fuzz target `pool_frames` and, with random frames, by the tests of this crate.

use std::sync::{Arc, LazyLock};

use crate::backend::{TaskSpec, add_file, duration};
use crate::protocol::{IncomingFrame, Options, OutgoingFrame, PlainRequest};
use crate::{Config, Program};

static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let program = "{command: [/bin/p, '{main}', '{format}', '{result}'], interactive: [/bin/p], input: .asy, \
                   formats: {svg: a, pdf: b}, result: 'o.{format}', verbosity: [[], [-v]]}";
    Config::parse(&format!("programs: {{p: {program}}}")).expect("the configuration is valid")
});

/// Parses the text in every way in which the pool parses input from outside.
pub fn check(text: &str) {
    frames(text);
    let _ = serde_json::from_str::<PlainRequest>(text);
    let _ = Config::parse(text);
    // A frame from a backend to a gateway: decoding and encoding it gives the same frame.
    if let Some(frame) = OutgoingFrame::read(text) {
        assert_eq!(OutgoingFrame::read(&frame.text()), Some(frame));
    }
}

/// Parses the frames of one client, one per line; the line after a file header is its content.
fn frames(text: &str) {
    let program: Arc<Program> = Arc::new(CONFIG.programs["p"].clone());
    let limits = &CONFIG.limits;
    let (mut files, mut options) = (Vec::new(), Options::default());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        match IncomingFrame::read(line) {
            Ok(IncomingFrame::Input(head)) => {
                let (Some(name), Some(bytes)) = (head.filename, lines.next()) else { continue };
                let added = add_file(&mut files, &program, limits, (name, bytes.into()));
                let last = files.last().filter(|_| added.is_ok());
                if let Some((name, _)) = last {
                    assert!(!name.contains(['/', '\0', ' ']) && !name.starts_with(['-', '.']));
                    assert!(name.ends_with(".asy"));
                }
            }
            Ok(IncomingFrame::Options(new)) => {
                let _ = new.duration.map(duration);
                options = options.clone().then(new);
            }
            Ok(IncomingFrame::Start(start)) => {
                for interactive in [false, true] {
                    let files = files.clone();
                    let spec = TaskSpec::new(program.clone(), files, &options, &start, interactive);
                    let Ok(spec) = spec else { continue };
                    assert!(spec.files.len() <= limits.input_files_max);
                    assert_eq!(spec.command[0], "/bin/p");
                    let result = spec.result.map(|(file, ..)| file);
                    assert!(result.is_none_or(|file| file == "o.svg" || file == "o.pdf"));
                }
            }
            Err(error) => assert!(error.to_string().len() < 4 * (line.len() + 200)),
        }
    }
    assert!(
        files.iter().map(|(_, bytes): &(String, Vec<u8>)| bytes.len()).sum::<usize>()
            <= limits.input_bytes_max
    );
}
