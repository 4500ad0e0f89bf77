//! Builds the documents as a searchable site in `target/site`, and checks the links of its pages.
//!
//! The documents link to each other and to files of the repository by relative paths. So the sources of the site have the same
//! folders as the repository: `docs/`, the pages outside of it, and the files that a page links to.

mod html;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::shell;
use crate::tidy::documents::CONTENTS;
use crate::tidy::links::linked_paths;
use crate::tidy::tree::Tree;
use crate::tools;

/// The first page of the site.
const FRONT: (&str, &str) = ("README.md", "Taskyard");

/// Chapters outside of `docs/`, which are last in the table of contents.
const OUTSIDE: [(&str, &str); 7] = [
    ("clients/python/README.md", "Python package"),
    ("clients/node/README.md", "Node package"),
    ("crates/client/README.md", "Rust client"),
    ("crates/worker/README.md", "Rust worker"),
    ("ARCHITECTURE.md", "Architecture"),
    ("CONTRIBUTING.md", "Contributing"),
    ("CHANGELOG.md", "Changelog"),
];

/// Builds the site and checks it.
pub fn build() -> Result<(), String> {
    let program = tools::mdbook()?;
    let root = shell::root();
    let tree = Tree::read(&root)?;
    let (source, site) = (shell::target().join("site-source"), shell::target().join("site"));
    for folder in [&source, &site] {
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(|error| at(folder, &error))?;
        }
    }
    for path in staged(&tree) {
        copy(&root.join(&path), &source.join(&path))?;
    }
    let contents = contents(tree.text(CONTENTS).unwrap_or_default());
    let file = source.join("SUMMARY.md");
    fs::write(&file, contents).map_err(|error| at(&file, &error))?;
    let mut mdbook = shell::program(program);
    mdbook.arg("build").arg("--dest-dir").arg(&site);
    shell::run(mdbook.env("MDBOOK_BOOK__SRC", &source))?;
    let pages = html::read(&site)?;
    let broken = html::broken_links(&pages, &|path| site.join(path).is_file());
    broken.iter().for_each(|problem| println!("{problem}"));
    match broken.len() {
        0 => {
            println!("site: {} pages, all links resolve: {}", pages.len(), site.display());
            Ok(())
        }
        count => Err(format!("site: {count} broken links")),
    }
}

/// The files of the site: everything in `docs/`, the chapters outside of it, and the files that a chapter links to.
fn staged(tree: &Tree) -> BTreeSet<String> {
    let is_chapter = |path: &str| {
        let outside = std::iter::once(FRONT).chain(OUTSIDE);
        path.starts_with("docs/") || outside.into_iter().any(|(chapter, _)| chapter == path)
    };
    let mut files: BTreeSet<String> = tree
        .paths()
        .filter(|path| is_chapter(path) && *path != CONTENTS)
        .map(String::from)
        .collect();
    for (path, text) in tree.ending(".md").filter(|(path, _)| is_chapter(path)) {
        let linked = linked_paths(path, text).into_iter().map(|(_, file)| file);
        files.extend(linked.filter(|file| !file.ends_with(".md") && tree.is_file(file)));
    }
    files
}

/// The table of contents with paths from the root, and with the chapters outside of `docs/`.
fn contents(summary: &str) -> String {
    let list = summary.replace("](", "](docs/").replacen("# Summary\n", "", 1);
    let (path, title) = FRONT;
    let outside = OUTSIDE.iter().map(|(path, title)| format!("- [{title}]({path})\n"));
    let outside = outside.collect::<String>();
    format!("# Summary\n\n[{title}]({path})\n{list}\n# Packages and project\n\n{outside}")
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder).map_err(|error| at(folder, &error))?;
    fs::copy(from, to).map(drop).map_err(|error| at(from, &error))
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linked_files_are_in_the_site() {
        let tree = Tree::of(&[
            ("README.md", "[s](docs/a.md) [l](LICENSE) [x](crates/x)"),
            ("LICENSE", ""),
            ("docs/SUMMARY.md", ""),
            ("docs/a.md", "[r](../crates/x/src/lib.rs#L1)"),
            ("docs/a.png", ""),
            ("crates/x/src/lib.rs", ""),
            ("crates/x/src/other.rs", ""),
            ("fuzz/README.md", "[o](../crates/x/src/other.rs)"),
        ]);
        let files = ["LICENSE", "README.md", "crates/x/src/lib.rs", "docs/a.md", "docs/a.png"];
        assert_eq!(staged(&tree), files.map(String::from).into());
    }

    #[test]
    fn chapters_have_paths_from_the_root() {
        let made = contents("# Summary\n\n[All](README.md)\n\n- [A](guides/a.md)\n");
        assert!(made.starts_with("# Summary\n\n[Taskyard](README.md)\n\n[All](docs/README.md)\n"));
        assert!(made.contains("- [A](docs/guides/a.md)\n"), "{made}");
        assert!(made.ends_with("- [Changelog](CHANGELOG.md)\n"), "{made}");
    }
}
