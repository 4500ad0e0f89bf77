//! Reads the figures that benchmarks print, and pairs those of OLD and NEW.

use super::json::{self, Json};
use super::statistics::Summary;

/// One figure of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    pub part: String,
    pub name: String,
    pub value: f64,
    pub unit: String,
    pub is_higher_better: bool,
}

/// The figures of one turn: of OLD and of NEW.
pub type Pair = [Vec<Figure>; 2];

/// A figure of both builds.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// As NEW prints it.
    pub figure: Figure,
    /// The medians of OLD and NEW.
    pub medians: [f64; 2],
    pub ratios: Vec<f64>,
    pub summary: Summary,
}

/// Reads the output of `--json`: objects, one a line, or the list of earlier builds, which gives no direction.
pub fn parse(text: &str) -> Result<Vec<Figure>, String> {
    let values = json::read_all(text).ok_or("it did not print JSON; is it a taskyard-bench?")?;
    let rows = values.iter().flat_map(|value| match value {
        Json::List(rows) => rows.as_slice(),
        row => std::slice::from_ref(row),
    });
    rows.map(|row| figure(row).ok_or_else(|| format!("it printed an unknown figure: {row:?}")))
        .collect()
}

fn figure(row: &Json) -> Option<Figure> {
    let text = |names: [&str; 2]| names.iter().find_map(|name| row.get(name)?.as_text());
    let unit = text(["unit", "unit"])?;
    // Earlier builds: a target is "≥ 100" or "≤ 2".
    let is_higher_better = match (text(["better", "better"]), text(["target", "asked"])) {
        (Some(better), _) => better == "higher",
        (None, Some(target)) if target.starts_with('≥') => true,
        (None, Some(target)) if target.starts_with('≤') => false,
        (None, _) => unit.ends_with("/s"),
    };
    let value = row.get("value").or_else(|| row.get("figure"))?.as_number()?;
    Some(Figure {
        part: text(["part", "part"]).unwrap_or_default().to_owned(),
        name: text(["name", "what"])?.to_owned(),
        value,
        unit: unit.to_owned(),
        is_higher_better,
    })
}

/// Compares each figure that both builds printed in every turn. Which way is better is what NEW says.
pub fn compare(pairs: &[Pair]) -> Vec<Comparison> {
    let Some([_, first]) = pairs.first() else { return Vec::new() };
    first.iter().filter_map(|figure| compare_one(figure, pairs)).collect()
}

fn compare_one(figure: &Figure, pairs: &[Pair]) -> Option<Comparison> {
    let find = |figures: &[Figure]| {
        let is_same = |other: &&Figure| other.name == figure.name && other.unit == figure.unit;
        figures.iter().find(is_same).map(|found| found.value)
    };
    let values: Option<Vec<[f64; 2]>> =
        pairs.iter().map(|[old, new]| Some([find(old)?, find(new)?])).collect();
    let values = values?;
    let ratios: Vec<f64> = values.iter().map(|[old, new]| new / old).collect();
    // A figure can be zero, for example the processor time of very little work.
    if !ratios.iter().all(|ratio| ratio.is_finite() && *ratio > 0.0) {
        return None;
    }
    let median =
        |side: usize| Summary::of(&values.iter().map(|pair| pair[side]).collect::<Vec<_>>()).median;
    Some(Comparison {
        figure: figure.clone(),
        medians: [median(0), median(1)],
        summary: Summary::of(&ratios),
        ratios,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(name: &str, value: f64) -> Figure {
        Figure {
            part: "memory".into(),
            name: name.into(),
            value,
            unit: "µs/task".into(),
            is_higher_better: false,
        }
    }

    #[test]
    fn lines_are_read() {
        let text = r#"{"part":"memory","name":"put","value":2.5,"unit":"µs/task","better":"lower","met":null}"#;
        assert_eq!(parse(text), Ok(vec![cost("put", 2.5)]));
    }

    /// What builds printed before JSON lines: one list, with the target as text and no direction.
    #[test]
    fn the_list_of_earlier_builds_is_read() {
        let text = r#"[
            {"asked":"≥ 1,000,000","figure":410793.0,"how":"","met":false,"unit":"commands/s","what":"memory"},
            {"asked":"≤ 1.50","figure":0.83,"how":"","met":true,"unit":"times the cost","what":"take"},
            {"asked":null,"figure":5.0,"how":"","met":null,"unit":"ms","what":"p50"}]"#;
        let figures = parse(text).unwrap();
        let found: Vec<_> =
            figures.iter().map(|f| (f.name.as_str(), f.value, f.is_higher_better)).collect();
        assert_eq!(
            found,
            [("memory", 410_793.0, true), ("take", 0.83, false), ("p50", 5.0, false)]
        );
    }

    #[test]
    fn other_output_is_refused() {
        for text in ["┌───┐", "{\"part\":1}", "[1]"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn figures_of_both_builds_are_paired() {
        let pairs = [
            [vec![cost("put", 2.0), cost("ack", 1.0)], vec![cost("put", 2.2), cost("new", 1.0)]],
            [vec![cost("put", 1.0), cost("ack", 1.0)], vec![cost("put", 1.0), cost("new", 1.0)]],
        ];
        let compared = compare(&pairs);
        assert_eq!(compared.len(), 1);
        assert_eq!(compared[0].ratios, [1.1, 1.0]);
        assert_eq!(compared[0].medians, [1.5, 1.6]);
        assert!(compare(&[[vec![cost("put", 0.0)], vec![cost("put", 1.0)]]]).is_empty());
    }
}
