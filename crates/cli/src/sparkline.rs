//! Draws numbers as a line of blocks.

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A block for each number; `highest` is eight eighths high.
pub fn blocks(values: &[f64], highest: f64) -> String {
    let block = |value: &f64| {
        let eighths = if highest > 0.0 { (value / highest * 8.0).ceil() } else { 0.0 };
        BLOCKS[(eighths as usize).min(8)]
    };
    values.iter().map(block).collect()
}
