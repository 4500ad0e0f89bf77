//! Checks that the commands in the documents are accepted by the command line, and that JSON, YAML and TOML in them can be read.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::builder::Resettable;
use clap::error::ErrorKind;

use crate::args::Cli;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A block of code in a document.
struct Block {
    path: String,
    /// The line of its first line.
    line: usize,
    language: String,
    text: String,
}

/// README.md, the README files of the packages, and all documents.
fn documents() -> Vec<PathBuf> {
    let names =
        ["README.md", "CONTRIBUTING.md", "clients/node/README.md", "clients/python/README.md"];
    let mut found: Vec<_> = names.iter().map(|name| Path::new(ROOT).join(name)).collect();
    let mut folders = vec![Path::new(ROOT).join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 50, "{found:?}");
    found
}

fn blocks() -> Vec<Block> {
    documents()
        .iter()
        .flat_map(|path| {
            let text = fs::read_to_string(path).unwrap();
            let name = path.strip_prefix(ROOT).unwrap().display().to_string();
            blocks_of(&name, &text)
        })
        .collect()
}

fn blocks_of(path: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (line, number) in text.lines().zip(1..) {
        let fence = line.trim_start().strip_prefix("```");
        open = match (open, fence) {
            (Some(block), Some(_)) => {
                blocks.push(block);
                None
            }
            (Some(mut block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
                Some(block)
            }
            (None, Some(language)) => {
                let (path, language) = (path.to_owned(), language.trim().to_owned());
                Some(Block { path, line: number + 1, language, text: String::new() })
            }
            (None, None) => None,
        };
    }
    blocks
}

/// The command lines of a block, each with its number: those after a `$` in a session, all lines in a script. Lines that end in `\` are joined.
fn commands(block: &Block) -> Vec<(usize, String)> {
    let is_session = match block.language.as_str() {
        "console" => true,
        "sh" | "bash" => false,
        _ => return Vec::new(),
    };
    let mut lines = block.text.lines().zip(block.line..);
    let mut found = Vec::new();
    while let Some((line, number)) = lines.next() {
        let Some(line) = (if is_session { line.strip_prefix("$ ") } else { Some(line) }) else {
            continue;
        };
        let mut command = line.to_owned();
        while command.ends_with('\\') {
            command.pop();
            command.push_str(lines.next().unwrap().0);
        }
        found.push((number, command));
    }
    found
}

/// A word of a shell, or what separates two commands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    End,
}

/// Splits a line as a shell does, as far as documents need it: quotes, comments, and what separates commands. A redirection ends the
/// words of its command.
fn tokens(line: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let (mut word, mut in_word) = (String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '#' if !in_word => break,
            '\'' | '"' => {
                in_word = true;
                while let Some(next) = chars.next().filter(|next| *next != c) {
                    let is_escape = c == '"' && next == '\\';
                    word.push(if is_escape { chars.next().unwrap_or(next) } else { next });
                }
            }
            '\\' => {
                in_word = true;
                word.extend(chars.next());
            }
            ' ' | '\t' | '|' | ';' | '&' | '>' | '<' | '(' | ')' => {
                if in_word {
                    found.push(Token::Word(std::mem::take(&mut word)));
                    in_word = false;
                }
                if c != ' ' && c != '\t' {
                    found.push(Token::End);
                }
            }
            c => {
                in_word = true;
                word.push(c);
            }
        }
    }
    if in_word {
        found.push(Token::Word(word));
    }
    found
}

/// The calls of `taskyard` in a line, also behind `cargo run --release --`.
fn calls(line: &str) -> Vec<Vec<String>> {
    let tokens = tokens(line);
    let simple = tokens.split(|token| *token == Token::End);
    let words = simple.map(|part| {
        let word = |token: &Token| match token {
            Token::Word(word) => Some(word.clone()),
            Token::End => None,
        };
        part.iter().filter_map(word).collect::<Vec<String>>()
    });
    words.filter_map(|words| call(&words)).collect()
}

fn call(words: &[String]) -> Option<Vec<String>> {
    // Variables for this command alone, and programs that run another one.
    let is_before = |word: &&String| {
        let is_variable = word
            .split_once('=')
            .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'));
        is_variable || ["sudo", "exec", "nohup", "time", "$"].contains(&word.as_str())
    };
    let words: Vec<&String> = words.iter().skip_while(is_before).collect();
    let (program, rest) = words.split_first()?;
    let args = match program.as_str() {
        "taskyard" | "target/release/taskyard" | "./taskyard" => rest,
        "cargo" if rest.starts_with(&[&"run".into(), &"--release".into(), &"--".into()]) => {
            &rest[3..]
        }
        _ => return None,
    };
    Some(args.iter().map(|arg| arg.to_string()).collect())
}

/// Why the command line refuses these arguments, in a block that sets these variables. Files and servers are not looked at.
fn refusal(args: &[String], block: &str) -> Option<String> {
    if args.is_empty() || args.iter().any(|arg| arg == "…") {
        return None;
    }
    let line = std::iter::once("taskyard").chain(args.iter().map(String::as_str));
    let command = with_variables(Cli::command(), block);
    let error = command.try_get_matches_from(line).err()?;
    let is_help = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind());
    (!is_help).then(|| error.to_string())
}

/// The same commands with the variables of a block, and without those of this process.
fn with_variables(command: clap::Command, block: &str) -> clap::Command {
    let command = command.mut_args(|arg| {
        let is_set = arg
            .get_env()
            .is_some_and(|name| block.contains(&format!("{}=", name.to_string_lossy())));
        let arg = arg.env(Resettable::Reset);
        if is_set { arg.required(false) } else { arg }
    });
    command.mut_subcommands(|command| with_variables(command, block))
}

/// Every command in the documents is one: a renamed option stayed in a page until a reader tried it.
#[test]
fn every_command_is_accepted() {
    let mut problems = Vec::new();
    let mut count = 0;
    for block in blocks() {
        for (line, text) in commands(&block) {
            for args in calls(&text) {
                count += 1;
                let refused = refusal(&args, &block.text);
                problems.extend(refused.map(|why| format!("{}:{line}: {text}\n{why}", block.path)));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(count > 100, "only {count} commands were found");
}

/// Why a text cannot be read as this language.
fn unreadable(language: &str, text: &str) -> Option<String> {
    let json = |text: &str| {
        serde_json::from_str::<serde_json::Value>(text).err().map(|error| error.to_string())
    };
    match language {
        // A log has an object in each line.
        "json" => json(text).filter(|_| text.lines().any(|line| json(line).is_some())),
        "yaml" => serde_saphyr::from_str::<serde_json::Value>(text).err().map(|e| e.to_string()),
        "toml" => toml::from_str::<toml::Table>(text).err().map(|error| error.to_string()),
        _ => None,
    }
}

#[test]
fn every_block_of_data_can_be_read() {
    let mut problems = Vec::new();
    for Block { path, line, language, text } in blocks() {
        let why = unreadable(&language, &text);
        problems.extend(why.map(|why| format!("{path}:{line}: {why}")));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(unreadable("yaml", "a: [").is_some() && unreadable("toml", "a: 1").is_some());
    assert!(unreadable("json", "{'a': 1}").is_some());
}

/// The code in the lines of a document, outside of its blocks.
fn code_in_lines(path: &str) -> Vec<(usize, String)> {
    let text = fs::read_to_string(path).unwrap();
    let mut is_fenced = false;
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        is_fenced ^= line.trim_start().starts_with("```");
        if !is_fenced {
            let code = line.split('`').skip(1).step_by(2);
            found.extend(code.map(|code| (number, code.replace("\\|", "|"))));
        }
    }
    found
}

/// Commands in lines are often cut to what matters, so only their names and options are compared.
#[test]
fn every_command_in_a_line_has_known_options() {
    let mut problems = Vec::new();
    let mut command = Cli::command();
    command.build();
    for path in documents() {
        for (line, code) in code_in_lines(&path.display().to_string()) {
            // In capitals, a word stands for any command.
            let is_name = |args: &Vec<String>| args.first().is_some_and(|arg| arg != "COMMAND");
            let Some(args) = calls(&code).into_iter().next().filter(is_name) else { continue };
            let args = args.iter().filter(|arg| *arg != "…").map(String::as_str);
            let args = std::iter::once("taskyard").chain(args);
            let error = command.clone().try_get_matches_from(args).err();
            let is_unknown = |error: &clap::Error| {
                [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand].contains(&error.kind())
            };
            let why = error.filter(is_unknown).map(|error| error.to_string());
            problems.extend(why.map(|why| format!("{}:{line}: {code}\n{why}", path.display())));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_line_is_split_as_by_a_shell() {
    let calls = |line: &str| calls(line).iter().map(|call| call.join("_")).collect::<Vec<_>>();
    let data = "taskyard put mail '{\"a\": 1}' --pri 1    # '{x}'";
    assert_eq!(calls(data), ["put_mail_{\"a\": 1}_--pri_1"]);
    assert_eq!(calls("A=b taskyard stats | jq . && taskyard top>file"), ["stats", "top"]);
    assert_eq!(calls("cargo run --release -- serve"), ["serve"]);
    assert!(calls("echo taskyard; # taskyard").is_empty());
    assert!(refusal(&["put".into(), "mail".into(), "1".into(), "--no-such".into()], "").is_some());
    assert!(refusal(&["serve".into(), "--no-such".into()], "").is_some());
    assert_eq!(refusal(&["put".into(), "--help".into()], ""), None);
}
