//! Any frames of a pool's client: nothing panics, and what is accepted is within the limits and leads nowhere else.
//!
//! The fuzz target feeds it with anything it finds, the pool's tests with frames made by chance.

use std::sync::{Arc, LazyLock};

use taskyard_pool::backend::{TaskSpec, add_file, duration};
use taskyard_pool::protocol::{IncomingFrame, Options, OutgoingFrame, PlainRequest};
use taskyard_pool::{Config, Program};

static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let program = "{command: [/bin/p, '{main}', '{format}', '{result}'], interactive: [/bin/p], input: .asy, \
                   formats: {svg: a, pdf: b}, result: 'o.{format}', verbosity: [[], [-v]]}";
    Config::parse(&format!("programs: {{p: {program}}}")).expect("it is right")
});

/// Reads the text in every way in which the pool reads what comes from outside.
pub fn check(text: &str) {
    frames(text);
    let _ = serde_json::from_str::<PlainRequest>(text);
    let _ = Config::parse(text);
    // What a backend says to a gateway: a frame that is read is written in the same way.
    if let Some(frame) = OutgoingFrame::read(text) {
        assert_eq!(OutgoingFrame::read(&frame.text()), Some(frame));
    }
}

/// The frames of one client, one a line; a file has the line after its head.
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
