//! The names of this machine, and of this process when it takes tasks.

use std::fs;
use std::sync::{Arc, LazyLock};

use taskyard_core::limits::WORKER_BYTES_MAX;
use taskyard_core::names::unfit_char;

/// The default name of a worker: host, process id and program, such as `web1:4711:mailer`.
pub fn worker_name() -> Arc<str> {
    static NAME: LazyLock<Arc<str>> = LazyLock::new(|| {
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(|path| path.file_name()?.to_str());
        compose(&host_name(), std::process::id(), program.unwrap_or("unknown")).into()
    });
    NAME.clone()
}

/// The name of this machine; empty if it is unknown.
pub fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Joins the parts; what does not fit is cut off, and what no name may contain is replaced.
fn compose(host: &str, process: u32, program: &str) -> String {
    let host = if host.is_empty() { "localhost" } else { host };
    let clean =
        |text: &str| text.replace(|char: char| unfit_char(&char.to_string()).is_some(), "_");
    let mut name = format!("{}:{process}:{}", clean(host), clean(program));
    name.truncate(name.floor_char_boundary(WORKER_BYTES_MAX));
    name
}

#[cfg(test)]
mod tests {
    use taskyard_core::failure::is_worker_name;

    use super::*;

    #[test]
    fn a_name_is_always_allowed() {
        assert_eq!(compose("web1", 7, "mailer"), "web1:7:mailer");
        assert_eq!(compose("", 7, "a\nb"), "localhost:7:a_b");
        for name in [compose(&"é".repeat(200), 7, "x"), worker_name().to_string()] {
            assert!(is_worker_name(&name), "{name}");
        }
    }
}
