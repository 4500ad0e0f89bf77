//! The help texts.

use taskyard_store::OpenOptions;

use crate::process::{TestServer, http_get, run};

/// All commands.
const VERBS: [&str; 27] = [
    "config",
    "copy",
    "manager",
    "migrate",
    "top",
    "serve",
    "put",
    "take",
    "ack",
    "release",
    "bury",
    "kick",
    "touch",
    "delete",
    "peek",
    "sql",
    "pool",
    "stats",
    "schedule",
    "semaphore",
    "simulate",
    "tube",
    "worker",
    "workers",
    "bench",
    "completions",
    "contract",
];

#[test]
fn help_lists_every_command_and_exit_code() {
    let help = run(&["--help"]).good();
    for verb in VERBS {
        assert!(help.contains(&format!("\n  {verb} ")), "{verb} is not in\n{help}");
    }
    for exit in 0..=11 {
        assert!(help.contains(&format!("\n  {exit}  ")), "{exit} is not in\n{help}");
    }
    assert!(help.contains("taskyard serve") && help.contains("ack mail 0"));
}

#[test]
fn every_command_has_help_with_an_example() {
    for verb in VERBS.into_iter().filter(|verb| !["contract", "tube"].contains(verb)) {
        let help = run(&[verb, "--help"]).good();
        assert!(help.contains("Examples:"), "{verb}:\n{help}");
        assert!(help.contains(&format!("taskyard {verb} ")), "{verb}:\n{help}");
    }
}

#[test]
fn every_command_about_sql_tasks_has_an_example() {
    let all = run(&["sql", "--help"]).good();
    for verb in ["check", "list", "show", "run", "stop", "next"] {
        let command = format!("taskyard sql {verb}");
        assert!(all.contains(&command), "{verb}:\n{all}");
        let help = run(&["sql", verb, "--help"]).good();
        assert!(help.contains("Example") && help.contains(&command), "{verb}:\n{help}");
    }
}

#[test]
fn every_command_about_pools_has_an_example() {
    let all = run(&["pool", "--help"]).good();
    for verb in ["serve", "gateway", "scheduler", "backend", "status"] {
        let command = format!("taskyard pool {verb}");
        assert!(all.contains(&command), "{verb}:\n{all}");
        let help = run(&["pool", verb, "--help"]).good();
        assert!(help.contains("Example") && help.contains(&command), "{verb}:\n{help}");
    }
}

#[test]
fn defaults_are_shown_with_units() {
    let help = run(&["serve", "--help"]).good();
    let memory = OpenOptions::default().memory_bytes >> 20;
    assert!(help.contains(&format!("[default: {memory}MB]")), "{help}");
    let help = run(&["put", "--help"]).good();
    assert!(help.contains("the end of a file is removed"), "{help}");
}

#[test]
fn all_client_commands_have_the_options_of_the_server() {
    for verb in ["put", "take", "ack", "kick", "stats", "worker"] {
        let help = run(&[verb, "--help"]).good();
        assert!(help.contains("--url <URL>") && help.contains("TASKYARD_URL"), "{verb}");
        assert!(help.contains("http://127.0.0.1:7070"), "{verb}");
        assert!(help.contains("TASKYARD_TOKEN"), "{verb}");
    }
}

#[test]
fn completions_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]).good();
        assert!(script.contains("taskyard") && script.contains("release"), "{shell}");
    }
    run(&["completions", "sh"]).ends(2);
}

// The page about running a server did not list all options.
#[test]
fn every_setting_of_serve_is_documented() {
    let page = include_str!("../../../../docs/operating.md");
    let help = run(&["serve", "--help"]).good();
    let words = help.split(|c: char| c.is_whitespace() || "[],.:;".contains(c));
    let flags = words.filter(|word| word.starts_with("--") && word.len() > 2);
    let missing: Vec<_> = flags.filter(|flag| *flag != "--help" && !page.contains(flag)).collect();
    assert!(missing.is_empty(), "docs/operating.md lacks {missing:?}");
}

// The page about semaphores did not list all calls.
#[test]
fn every_command_of_semaphores_is_documented() {
    let page = include_str!("../../../../docs/semaphores.md");
    let calls = page.split_once("## Calls").expect("a section").1;
    let calls = calls.split("\n## ").next().expect("its text");
    let rows = calls.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let documented: Vec<&str> = rows.flat_map(|names| names.split(", ")).collect();
    let help = run(&["semaphore", "--help"]).good();
    let commands = help.split_once("Commands:\n").expect("a list").1.split("\n\n").next();
    let commands = commands.expect("the list").lines().filter_map(|line| {
        let name = line.strip_prefix("  ")?.split_whitespace().next()?;
        (line.as_bytes()[2] != b' ' && name != "help").then_some(name)
    });
    let commands: Vec<&str> = commands.collect();
    assert!(commands.len() > 8, "{help}");
    let missing: Vec<_> = commands.iter().filter(|name| !documented.contains(name)).collect();
    assert!(missing.is_empty(), "docs/semaphores.md lacks {missing:?}");
    // Calls of the other faces that are flags of a command here.
    for call in ["peek", "yield", "decline", "extend", "acknowledge"] {
        assert!(documented.contains(&call), "docs/semaphores.md lacks {call}");
    }
}

// The page about running a server listed only a part of the metrics.
#[test]
fn every_metric_is_documented() {
    let page = include_str!("../../../../docs/operating.md");
    let rows = page.lines().filter(|line| line.starts_with("| `taskyard_"));
    let documented: Vec<&str> = rows.flat_map(|row| row.split('`')).collect();
    let server = TestServer::new();
    server.run(&["put", "mail", "x"]).good();
    let metrics = http_get(&server.serving.url, "/metrics");
    let families = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let mut families: Vec<&str> = families.filter_map(|line| line.split(' ').next()).collect();
    assert!(families.contains(&"taskyard_tasks"), "{metrics}");
    // Semaphores have rows only after the server has counted them, which happens every few seconds.
    let source = include_str!("../../../server/src/metrics.rs");
    families.extend(source.split('"').filter(|text| text.starts_with("taskyard_semaphore_")));
    let missing: Vec<_> = families.iter().filter(|name| !documented.contains(name)).collect();
    assert!(missing.is_empty(), "docs/operating.md lacks {missing:?}");
}

/// All Rust sources below a folder of a crate.
fn sources(folder: &std::path::Path) -> String {
    let entries = std::fs::read_dir(folder).expect("the folder of a crate");
    let texts = entries.map(|entry| {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => sources(&path),
            false => std::fs::read_to_string(path).unwrap_or_default(),
        }
    });
    texts.collect()
}

// The names of metrics of services that a test server does not host were compared with nothing.
#[test]
fn every_metric_of_a_service_is_documented() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let services = [
        ("services/pool", "taskyard_pool_", "docs/pool.md"),
        ("services/sql", "taskyard_sql_", "docs/operating.md"),
        ("worker", "taskyard_manager_", "docs/operating.md"),
    ];
    for (folder, prefix, page) in services {
        let code = sources(&root.join("crates").join(folder).join("src"));
        let is_name = |text: &&str| {
            text.len() > prefix.len() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        };
        let names = code.split('"').filter(|text| text.starts_with(prefix)).filter(is_name);
        let names: Vec<&str> = names.collect();
        assert!(!names.is_empty(), "{folder} has no {prefix}");
        let text = std::fs::read_to_string(root.join(page)).expect(page);
        // The page about pools leaves the prefix out.
        let short = |name: &&str| {
            let end = name.strip_prefix("taskyard_pool_").unwrap_or(name);
            !text.contains(&format!("`{end}`"))
        };
        let missing: Vec<_> = names.into_iter().filter(short).collect();
        assert!(missing.is_empty(), "{page} lacks {missing:?}");
    }
}

// An alert on a metric that was renamed is never raised.
#[test]
fn every_documented_metric_exists() {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let folders = ["server", "services/pool", "services/sql", "worker", "cli"];
    let code: String =
        folders.map(|name| sources(&root.join("crates").join(name).join("src"))).concat();
    let pages = ["docs/operating.md", "docs/pool.md", "docs/operate/monitoring.md", "docs/http.md"];
    for page in pages.into_iter().chain(["docs/security.md", "deploy/prometheus-rules.yaml"]) {
        let text = std::fs::read_to_string(root.join(page)).expect(page);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let is_metric = |word: &&str| word.starts_with("taskyard_") && !word.ends_with('_');
        // A package of Debian, and a variable of nginx.
        let is_other = |word: &&str| word.starts_with("taskyard_0") || *word == "taskyard_path";
        let names = words.filter(is_metric).filter(|word| !is_other(word));
        for name in names {
            let series = ["_bucket", "_sum", "_count"].iter();
            let family = series.fold(name, |name, end| name.strip_suffix(end).unwrap_or(name));
            assert!(code.contains(name) || code.contains(family), "{page}: {name} does not exist");
        }
    }
}
