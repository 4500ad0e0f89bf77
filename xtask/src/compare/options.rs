//! Parses the arguments of a comparison.

/// What `--compare --help` prints.
pub const HELP: &str = "\
Compares two builds of the benchmark in turns.

  cargo xtask bench --compare OLD NEW --only PART [OPTIONS] [-- ARGUMENTS OF THE BENCHMARK]

OLD and NEW are git revisions, or files: a benchmark (taskyard-bench) that was built before. `.` is the working tree. A revision is
built once, in a worktree below target/compare, and its programs are kept there; all builds share the external packages.

Each turn runs PART with OLD and with NEW, in alternating order. For each figure that both print, the table shows the median of the
ratios NEW / OLD of the turns and its 95 % confidence interval, and whether `at most 3 % worse` is
  shown      the whole interval is within the limit,
  refuted    the whole interval is outside,
  open       neither: more turns or a quieter machine may decide it.
On a shared machine compare processor time (µs/task) rather than rates.

The part `served` measures server processes: then the benchmark of NEW measures the servers of both, so OLD may be any build whose
server answers the same HTTP requests. For other parts an OLD benchmark without JSON lines is read in its earlier form.

  --only PART        the part to run: one, such as memory, durable, http, iproto, keys, postgres, redis, tarantool or served
  --turns N          how many turns (10); fewer than 6 have no 95 % interval
  --limit PERCENT    the limit that is to be shown (3)
  --old-arg ARG      one more argument of the benchmark for OLD only, such as --old-arg=--quick; may be repeated
  --new-arg ARG      the same for NEW
  --json             print one JSON object a line instead of a table

Examples:
  cargo xtask bench --compare HEAD~20 HEAD --only memory
  cargo xtask bench --compare 34cae17c . --only served --turns 12 -- --store postgres
  cargo xtask bench --compare . . --only served --new-arg=--serve-arg=--record=trace -- --store memory
";

/// A parsed comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct CompareOptions {
    /// A revision or a file.
    pub old: String,
    pub new: String,
    pub part: String,
    pub turns: usize,
    /// In per cent.
    pub limit: f64,
    pub json: bool,
    /// Arguments of the benchmark for both, and for one of them.
    pub args: Vec<String>,
    pub old_args: Vec<String>,
    pub new_args: Vec<String>,
}

impl CompareOptions {
    /// `None` if the help is asked for.
    pub fn parse(args: &[String]) -> Result<Option<Self>, String> {
        let mut own = args.iter().take_while(|arg| *arg != "--");
        if own.any(|arg| arg == "--help" || arg == "-h") {
            return Ok(None);
        }
        let mut options = CompareOptions {
            old: String::new(),
            new: String::new(),
            part: String::new(),
            turns: 10,
            limit: 3.0,
            json: false,
            args: Vec::new(),
            old_args: Vec::new(),
            new_args: Vec::new(),
        };
        let mut words = args.iter();
        while let Some(word) = words.next() {
            let (name, given) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let mut value = |what: &str| {
                let next = given.clone().or_else(|| words.next().cloned());
                next.ok_or_else(|| format!("{name} needs {what}; see --compare --help"))
            };
            match name {
                "--compare" => {
                    options.old = value("OLD and NEW")?;
                    options.new = words.next().cloned().unwrap_or_default();
                }
                "--only" => options.part = value("a part")?,
                "--turns" => options.turns = number(name, &value("a number")?)?,
                "--limit" => options.limit = number(name, &value("a percentage")?)?,
                "--old-arg" => options.old_args.push(value("an argument")?),
                "--new-arg" => options.new_args.push(value("an argument")?),
                "--json" => options.json = true,
                "--" => options.args.extend(words.by_ref().cloned()),
                _ => {
                    return Err(format!(
                        "a comparison has no `{word}`; put arguments of the benchmark after `--`, and see --compare --help"
                    ));
                }
            }
        }
        options.check().map(Some)
    }

    fn check(self) -> Result<Self, String> {
        let is_build = |text: &str| !text.is_empty() && !text.starts_with('-');
        if !is_build(&self.old) || !is_build(&self.new) {
            return Err(
                "--compare needs two builds: revisions or files; see --compare --help".into()
            );
        }
        if self.part.is_empty() || self.part.contains(',') {
            return Err("a comparison runs one part: add --only PART, such as --only memory".into());
        }
        if self.turns == 0 {
            return Err("--turns must be at least 1".into());
        }
        if !(self.limit > 0.0 && self.limit < 100.0) {
            return Err("--limit must be between 0 and 100 per cent".into());
        }
        Ok(self)
    }

    /// Whether server processes are measured, by the benchmark of NEW.
    pub fn measures_servers(&self) -> bool {
        self.part == "served"
    }
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name} needs a number, not `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<CompareOptions>, String> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        CompareOptions::parse(&words)
    }

    #[test]
    fn a_comparison_is_parsed() {
        let line = "--compare main . --only served --turns=12 --limit 2 --json \
                    --new-arg=--serve-arg=--record=trace -- --store redis --quick";
        let options = parsed(line).unwrap().unwrap();
        let expected = CompareOptions {
            old: "main".into(),
            new: ".".into(),
            part: "served".into(),
            turns: 12,
            limit: 2.0,
            json: true,
            args: ["--store", "redis", "--quick"].map(String::from).into(),
            old_args: Vec::new(),
            new_args: vec!["--serve-arg=--record=trace".into()],
        };
        assert_eq!(options, expected);
        assert!(options.measures_servers());
    }

    #[test]
    fn the_help_is_shown() {
        assert_eq!(parsed("--compare main . --help"), Ok(None));
        assert_eq!(parsed("--compare --help"), Ok(None));
    }

    #[test]
    fn mistakes_are_explained() {
        for (line, hint) in [
            ("--compare main", "two builds"),
            ("--compare", "OLD and NEW"),
            ("--compare main .", "--only PART"),
            ("--compare main . --only memory,http", "one part"),
            ("--compare main . --only memory --turns many", "needs a number"),
            ("--compare main . --only memory --turns 0", "at least 1"),
            ("--compare main . --only memory --limit 0", "per cent"),
            ("--compare main . --only memory --quick", "after `--`"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(hint), "{line}: {error}");
        }
    }
}
