//! Keeps code in documents equal to the programs that the tests run.
//!
//! A block of code that follows `<!-- from: examples/put.rs -->` equals that file. With
//! `<!-- from: examples/put.rs#take -->` it equals the lines between `// docs: begin take` and
//! `// docs: end` there, moved to the left. `cargo xtask tidy --fix` copies them again.

use super::Diagnostic;
use super::links::is_fence;
use super::tree::Tree;

/// Complains about copies that differ, and about marks that name nothing.
pub fn check(tree: &Tree) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for (path, text) in tree.ending(".md") {
        for (number, refreshed) in refresh(tree, text).1 {
            let (problem, instead) = match refreshed {
                Ok(origin) => (
                    format!("this code differs from `{origin}`"),
                    "change the example, then run `cargo xtask tidy --fix`",
                ),
                Err(problem) => {
                    (problem, "`<!-- from: path -->` or `<!-- from: path#NAME -->`, then code")
                }
            };
            diagnostics.push(Diagnostic::new((path, number), problem, instead));
        }
    }
    diagnostics
}

/// The documents whose copies differ, as they should be.
pub fn fixed(tree: &Tree) -> Vec<(String, String)> {
    tree.ending(".md")
        .map(|(path, text)| (path, text, refresh(tree, text).0))
        .filter(|(_, text, fresh)| text != fresh)
        .map(|(path, _, fresh)| (path.to_string(), fresh))
        .collect()
}

/// A mark with a finding: what its code differs from, or what is wrong with the mark itself.
type Finding = (usize, Result<String, String>);

/// Copies every example again and reports the line of each mark where that made a difference.
fn refresh(tree: &Tree, text: &str) -> (String, Vec<Finding>) {
    let mut fresh = Vec::new();
    let mut findings = Vec::new();
    let mut fenced = false;
    let lines: Vec<&str> = text.lines().collect();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        fresh.push(line.to_string());
        fenced ^= is_fence(line);
        let Some(origin) = origin(line).filter(|_| !fenced) else { continue };
        match (wanted(tree, origin), block(&lines, at)) {
            (Ok(wanted), Some((open, close))) => {
                if lines[open + 1..close].iter().ne(wanted.iter()) {
                    findings.push((at, Ok(origin.to_string())));
                }
                fresh.extend(lines[at..=open].iter().map(|line| line.to_string()));
                fresh.extend(wanted);
                fresh.push(lines[close].to_string());
                at = close + 1;
            }
            (Err(problem), _) => findings.push((at, Err(problem))),
            (_, None) => findings.push((at, Err(format!("no code follows the mark `{origin}`")))),
        }
    }
    let end = if text.ends_with('\n') { "\n" } else { "" };
    (fresh.join("\n") + end, findings)
}

fn origin(line: &str) -> Option<&str> {
    Some(line.trim().strip_prefix("<!-- from:")?.strip_suffix("-->")?.trim())
}

/// The lines of the two fences of the block that begins here, perhaps after blank lines.
fn block(lines: &[&str], from: usize) -> Option<(usize, usize)> {
    let open = (from..lines.len()).find(|at| !lines[*at].trim().is_empty())?;
    let close = (open + 1..lines.len()).find(|at| is_fence(lines[*at]))?;
    is_fence(lines[open]).then_some((open, close))
}

/// The lines that an origin such as `path` or `path#NAME` stands for.
fn wanted(tree: &Tree, origin: &str) -> Result<Vec<String>, String> {
    let (path, name) = origin.split_once('#').map_or((origin, None), |(p, n)| (p, Some(n)));
    let text = tree.text(path).ok_or_else(|| format!("there is no file `{path}`"))?;
    let Some(name) = name else { return Ok(text.lines().map(String::from).collect()) };
    let begin = format!("docs: begin {name}");
    let part: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.trim_end().ends_with(&begin))
        .skip(1)
        .take_while(|line| !line.trim_end().ends_with("docs: end"))
        .collect();
    if part.is_empty() {
        return Err(format!("`{path}` has no lines after `// {begin}`"));
    }
    let indent = |line: &&str| line.len() - line.trim_start().len();
    let full = part.iter().filter(|line| !line.trim().is_empty());
    let left = full.map(indent).min().unwrap_or(0);
    Ok(part.iter().map(|line| line.get(left..).unwrap_or("").to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "\
fn main() {
    // docs: begin put
    if ready {

        put();
    }
    // docs: end
}
";

    fn tree(document: &str) -> Tree {
        Tree::of(&[("examples/put.rs", EXAMPLE), ("README.md", document)])
    }

    fn problem(document: &str) -> Vec<(usize, String)> {
        check(&tree(document)).into_iter().map(|found| (found.line, found.problem)).collect()
    }

    #[test]
    fn a_whole_file() {
        let good = format!("a\n<!-- from: examples/put.rs -->\n\n```rust\n{EXAMPLE}```\n");
        assert_eq!(problem(&good), []);
        let differs = good.replace("ready", "READY");
        assert_eq!(problem(&differs), [(2, "this code differs from `examples/put.rs`".into())]);
        assert_eq!(fixed(&tree(&differs)), [("README.md".to_string(), good)]);
    }

    #[test]
    fn a_part_is_moved_to_the_left() {
        let good =
            "<!-- from: examples/put.rs#put -->\n```rust\nif ready {\n\n    put();\n}\n```\nb\n";
        assert_eq!(problem(good), []);
        let empty = "<!-- from: examples/put.rs#put -->\n```rust\n```\nb\n";
        assert_eq!(fixed(&tree(empty)), [("README.md".to_string(), good.to_string())]);
    }

    #[test]
    fn marks_that_name_nothing() {
        let cases = [
            ("<!-- from: none.rs -->\n```\n```\n", "there is no file `none.rs`"),
            (
                "<!-- from: examples/put.rs#take -->\n```\n```\n",
                "`examples/put.rs` has no lines after `// docs: begin take`",
            ),
            (
                "<!-- from: examples/put.rs -->\ntext\n",
                "no code follows the mark `examples/put.rs`",
            ),
        ];
        for (document, expected) in cases {
            assert_eq!(problem(document), [(1, expected.to_string())]);
            assert_eq!(fixed(&tree(document)), [], "what cannot be copied is left alone");
        }
    }

    #[test]
    fn a_mark_inside_code_is_code() {
        assert_eq!(problem("```\n<!-- from: none.rs -->\n```\n"), []);
    }
}
