//! Lengths of functions in Lua files.

use super::Diagnostic;
use super::shape::FUNCTION_LINES_MAX;
use super::tree::Tree;

/// A function with its first line, counted from 1, and its number of lines.
#[derive(Debug, PartialEq, Eq)]
struct LuaFunction {
    name: String,
    line: usize,
    length: usize,
}

/// A block that `end` or `until` closes; a function also has a name.
struct LuaBlock {
    function: Option<String>,
    line: usize,
}

/// Lua functions obey the same ceiling as Rust functions.
pub fn function_length(tree: &Tree) -> Vec<Diagnostic> {
    let files =
        tree.ending(".lua").filter(|(path, _)| !path.split('/').any(|part| part == "tests"));
    let functions =
        files.flat_map(|(path, text)| functions(text).into_iter().map(move |found| (path, found)));
    functions
        .filter(|(_, function)| function.length > FUNCTION_LINES_MAX)
        .map(|(path, LuaFunction { name, line, length })| {
            Diagnostic::new(
                (path, line),
                format!("`{name}` has {length} lines, the ceiling is {FUNCTION_LINES_MAX}"),
                "move its steps into functions with names; most fit in 40 lines",
            )
        })
        .collect()
}

/// All functions of a file, in the order in which they end.
fn functions(text: &str) -> Vec<LuaFunction> {
    let mut found = Vec::new();
    let mut blocks: Vec<LuaBlock> = Vec::new();
    for (index, code) in without_literals(text).lines().enumerate() {
        let line = index + 1;
        let code = code.replace('(', " ( ");
        let mut words = code
            .split(|char: char| !(char.is_alphanumeric() || "_.:(".contains(char)))
            .filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            match word {
                "function" => {
                    let name = words.next().filter(|name| *name != "(");
                    let function = Some(name.unwrap_or("function").to_owned());
                    blocks.push(LuaBlock { function, line });
                }
                // `for` and `while` have a `do` of their own.
                "if" | "do" | "repeat" => blocks.push(LuaBlock { function: None, line }),
                "end" | "until" => {
                    let block = blocks.pop();
                    if let Some(LuaBlock { function: Some(name), line: first }) = block {
                        found.push(LuaFunction { name, line: first, length: line - first + 1 });
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// The code without comments and the insides of strings; lines stay.
fn without_literals(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        let comment = rest.strip_prefix("--");
        let skipped = if let Some(bytes) = long_bracket(comment.unwrap_or(rest)) {
            bytes + if comment.is_some() { 2 } else { 0 }
        } else if comment.is_some() {
            rest.find('\n').unwrap_or(rest.len())
        } else if char == '\'' || char == '"' {
            quoted(rest, char)
        } else {
            code.push(char);
            rest = &rest[char.len_utf8()..];
            continue;
        };
        code.push(' ');
        code.extend(rest[..skipped].chars().filter(|char| *char == '\n'));
        rest = &rest[skipped..];
    }
    code
}

/// The length of a long string `[[...]]` or `[=[...]=]` at the beginning of a text.
fn long_bracket(text: &str) -> Option<usize> {
    let level = text.strip_prefix('[')?.chars().take_while(|char| *char == '=').count();
    if !text[1 + level..].starts_with('[') {
        return None;
    }
    let end = format!("]{}]", "=".repeat(level));
    Some(text.find(&end).map_or(text.len(), |at| at + end.len()))
}

/// The length of a quoted string at the beginning of a text.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, char) in text.char_indices().skip(1) {
        if !escaped && (char == quote || char == '\n') {
            return at + usize::from(char == quote);
        }
        escaped = !escaped && char == '\\';
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(String, usize, usize)> {
        functions(text).into_iter().map(|found| (found.name, found.line, found.length)).collect()
    }

    #[test]
    fn functions_have_names_lines_and_lengths() {
        let text = "\
local function one(a)
    for b = 1, a do
        if b then repeat b = b - 1 until b == 0 end
    end
end
function api.two() return 'end' end
api['end'] = function() -- end
    while true do break end
    return [[
end]], \"it's \\\" end\"
end
";
        let wanted = [("one", 1, 5), ("api.two", 6, 1), ("function", 7, 5)];
        assert_eq!(found(text), wanted.map(|(name, line, length)| (name.to_owned(), line, length)));
    }

    #[test]
    fn long_functions_are_found() {
        let body =
            |lines: usize| format!("\nlocal function f()\n{}end\n", "    g()\n".repeat(lines - 2));
        let tree = Tree::of(&[
            ("src/lua/fits.lua", &body(70)),
            ("src/lua/long.lua", &body(71)),
            ("tests/long.lua", &body(71)),
        ]);
        let diagnostics = function_length(&tree);
        assert_eq!(diagnostics.len(), 1);
        assert_eq!(diagnostics[0].path, "src/lua/long.lua");
        assert_eq!(diagnostics[0].problem, "`f` has 71 lines, the ceiling is 70");
    }
}
