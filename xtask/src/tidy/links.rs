//! Checks that links between documents lead to existing files and headings.

use std::collections::BTreeSet;

use super::Diagnostic;
use super::tree::Tree;

/// Every relative link of a document names a file that is there, and a heading in it.
pub fn check(tree: &Tree) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for (path, text) in tree.ending(".md") {
        for (line, number) in prose(text).iter().zip(1..) {
            for link in links(line) {
                if let Some(problem) = broken(tree, path, link) {
                    let instead = "a path from this document's folder to what exists, or no link";
                    diagnostics.push(Diagnostic::new((path, number), problem, instead));
                }
            }
        }
    }
    diagnostics
}

fn broken(tree: &Tree, from: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = link.split_once('#').map_or((link, None), |(f, h)| (f, Some(h)));
    let path = if file.is_empty() { Some(from.to_string()) } else { resolve(from, file) };
    let Some(path) = path.filter(|path| tree.has(path)) else {
        return Some(format!("`{link}` leads nowhere"));
    };
    let heading = heading?;
    let text = tree.text(&path).filter(|_| path.ends_with(".md"))?;
    (!headings(text).contains(heading)).then(|| format!("`{path}` has no heading `#{heading}`"))
}

/// The files that this document links to, as paths from the root, with the line of each link.
pub fn linked_paths(from: &str, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, number) in prose(text).iter().zip(1..) {
        let files = links(line).into_iter().filter(|link| !link.contains("://"));
        let files = files.filter_map(|link| link.split('#').next()).filter(|file| !file.is_empty());
        found.extend(files.filter_map(|file| Some((number, resolve(from, file)?))));
    }
    found
}

/// The path from the root that `link` means in the document `from`.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if link.starts_with('/') {
        parts.clear();
    }
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The lines of a document, with all code blanked.
fn prose(text: &str) -> Vec<String> {
    let mut fenced = false;
    text.lines()
        .map(|line| {
            let fence = is_fence(line);
            fenced ^= fence;
            if fenced || fence { String::new() } else { without_code(line) }
        })
        .collect()
}

/// Whether the line opens or closes a block of code.
pub fn is_fence(line: &str) -> bool {
    line.trim_start().starts_with("```")
}

/// Drops what stands between backquotes.
fn without_code(line: &str) -> String {
    if line.matches('`').count() % 2 == 1 {
        return line.into();
    }
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// What the line links to: `[text](link)`, `[name]: link`, `src="link"`, `href="link"`.
fn links(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (before, after) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
        for (at, _) in line.match_indices(before) {
            found.extend(line[at + before.len()..].split(after).next());
        }
    }
    if line.starts_with('[')
        && let Some((_, link)) = line.split_once("]: ")
    {
        found.push(link);
    }
    // A title may follow, and brackets may surround.
    let words = found.into_iter().filter_map(|link| link.split_whitespace().next());
    words.map(|link| link.trim_matches(['<', '>'])).collect()
}

/// The names under which a document's headings can be linked.
fn headings(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= is_fence(line);
        let title = line.trim_start_matches('#');
        if !fenced && title.len() < line.len() && title.starts_with(' ') {
            let name = slug(title);
            let again = (1..).map(|n| format!("{name}-{n}"));
            let mut free = std::iter::once(name.clone()).chain(again);
            names.extend(free.find(|name| !names.contains(name)));
        }
        for mark in ["id=\"", "name=\""] {
            let marked = line.split(mark).skip(1).filter_map(|rest| rest.split('"').next());
            names.extend(marked.map(String::from));
        }
    }
    names
}

fn slug(title: &str) -> String {
    let kept = |char: &char| char.is_alphanumeric() || "-_ ".contains(*char);
    title.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("docs/guide/a.md", text),
            ("docs/b.md", "# First, then\n```\n# no heading\n```\n# First, then\n<a id=\"own\">\n"),
            ("README.md", ""),
        ]);
        check(&tree).into_iter().map(|diagnostic| diagnostic.problem).collect()
    }

    #[test]
    fn links_that_lead_somewhere() {
        let text = "\
# Here
[a](../b.md) [b](../b.md#first-then \"a title\") [c](../b.md#first-then-1) [d](/README.md)
[e](https://example.org/none) [f](mailto:a@b.c) [g](#here) [h](../../README.md) ![i](<../b.md>)
[j](../b.md#own) [k](..) `[l](none)`
[m]: ../b.md
<img src=\"../b.md\">
```
[n](none)
```
";
        assert_eq!(problem(text), Vec::<String>::new());
    }

    #[test]
    fn links_that_lead_nowhere() {
        let cases = [
            ("[a](b.md)", "`b.md` leads nowhere"),
            ("[a]( ../none )", "`../none` leads nowhere"),
            ("[a](../../../b.md)", "`../../../b.md` leads nowhere"),
            ("[a]: none.md", "`none.md` leads nowhere"),
            ("<a href=\"none\">", "`none` leads nowhere"),
            ("[a](#none)", "`docs/guide/a.md` has no heading `#none`"),
            ("[a](../b.md#no-heading)", "`docs/b.md` has no heading `#no-heading`"),
        ];
        for (text, expected) in cases {
            assert_eq!(problem(text), [expected], "{text}");
        }
    }
}
