use std::fmt::Write as _;

use serde::Serialize;

use super::median;
use crate::machine::Machine;

/// What a measured figure has to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

/// The figures of one side, in the order of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub name: String,
    pub unit: &'static str,
    pub values: Vec<f64>,
    pub median: f64,
}

impl Figures {
    pub fn new(name: &str, unit: &'static str, values: Vec<f64>) -> Figures {
        Figures {
            name: name.to_owned(),
            unit,
            median: median(&values),
            values,
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub name: String,
    pub what: String,
    pub baseline: String,
    pub goal: Goal,
    pub measured: f64,
    /// Of goal and measured figure: × for a ratio.
    pub unit: &'static str,
    pub reached: bool,
    pub raw: Vec<Figures>,
}

impl Row {
    /// The median of the rounds' ratios: what slows a machine down slows both sides of a round.
    pub fn ratio(name: &str, what: &str, goal: Goal, ours: Figures, baseline: Figures) -> Row {
        let pairs = ours.values.iter().zip(&baseline.values);
        let ratios: Vec<f64> = pairs.map(|(ours, baseline)| ours / baseline).collect();
        let measured = median(&ratios);
        Row::figure(name, what, goal, measured, "×", vec![ours, baseline])
    }

    /// One figure with a unit; what it is compared with, if anything, is the second of `raw`.
    pub fn figure(
        name: &str,
        what: &str,
        goal: Goal,
        measured: f64,
        unit: &'static str,
        raw: Vec<Figures>,
    ) -> Row {
        let baseline = raw.get(1).map_or(String::new(), |side| side.name.clone());
        Row {
            name: name.to_owned(),
            what: what.to_owned(),
            baseline,
            goal,
            measured,
            unit,
            reached: match goal {
                Goal::AtLeast(least) => measured >= least,
                Goal::AtMost(most) => measured <= most,
            },
            raw,
        }
    }

    /// With its raw figures, for the log.
    pub fn line(&self) -> String {
        let mut line = format!(
            "{} {}: {} {}",
            self.name,
            self.what,
            short(self.measured),
            self.unit
        );
        for side in &self.raw {
            let values: Vec<String> = side.values.iter().map(|value| short(*value)).collect();
            let _ = write!(line, "; {} {} {}", side.name, values.join(" "), side.unit);
        }
        line
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// Changes when a field changes its meaning.
    pub version: u32,
    pub machine: Machine,
    pub rows: Vec<Row>,
}

impl Table {
    pub fn new(machine: Machine) -> Table {
        Table {
            version: 1,
            machine,
            rows: vec![],
        }
    }

    /// A table that reads as plain text, and is Markdown.
    pub fn text(&self) -> String {
        let head = ["benchmark", "baseline", "goal", "measured", "verdict"].map(str::to_owned);
        let mut lines = vec![head];
        for row in &self.rows {
            lines.push([
                format!("{} {}", row.name, row.what),
                row.baseline.clone(),
                goal(row.goal, row.unit),
                format!("{} {}", short(row.measured), row.unit),
                if row.reached { "reached" } else { "MISSED" }.to_owned(),
            ]);
        }
        let mut widths = [0; 5];
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for (number, line) in lines.iter().enumerate() {
            for (width, cell) in widths.iter().zip(line) {
                let _ = write!(text, "| {cell:<width$} ");
            }
            text.push_str("|\n");
            if number == 0 {
                for width in widths {
                    let _ = write!(text, "|{}", "-".repeat(width + 2));
                }
                text.push_str("|\n");
            }
        }
        let machine = &self.machine;
        let _ = writeln!(
            text,
            "\n{} processors ({}), Linux {}, Redis {}, load {:.1} before the run",
            machine.processors, machine.model, machine.kernel, machine.redis, machine.load_before
        );
        text
    }

    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a table is plain data") + "\n"
    }
}

fn goal(goal: Goal, unit: &str) -> String {
    match goal {
        Goal::AtLeast(least) => format!("≥ {} {unit}", short(least)),
        Goal::AtMost(most) => format!("≤ {} {unit}", short(most)),
    }
}

/// Three digits, or all that stand before the point.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let ours = Figures::new("hongbao", "grabs/s", vec![210.0, 190.0, 200.0]);
        let theirs = Figures::new("classic", "grabs/s", vec![100.0, 95.0, 125.0]);
        let idle = Figures::new("idle", "KiB", vec![3.25]);
        let mut table = Table::new(Machine {
            processors: 2,
            model: "Test".into(),
            kernel: "6".into(),
            memory_mib: 1_024,
            redis: "7".into(),
            load_before: 0.5,
            at_ms: 1,
        });
        table.rows = vec![
            Row::ratio("B1", "winning", Goal::AtLeast(2.5), ours, theirs),
            Row::figure("B9", "memory", Goal::AtMost(4.0), 3.25, "KiB", vec![idle]),
        ];
        table
    }

    #[test]
    fn the_table_is_this_text() {
        let wanted = "\
| benchmark  | baseline | goal       | measured | verdict |
|------------|----------|------------|----------|---------|
| B1 winning | classic  | ≥ 2.50 ×   | 2.00 ×   | MISSED  |
| B9 memory  |          | ≤ 4.00 KiB | 3.25 KiB | reached |

2 processors (Test), Linux 6, Redis 7, load 0.5 before the run
";
        assert_eq!(table().text(), wanted);
    }

    #[test]
    fn the_json_has_the_raw_figures_and_the_verdict() {
        let json: serde_json::Value = serde_json::from_str(&table().json()).unwrap();
        let row = &json["rows"][0];
        assert_eq!(
            row["raw"][0]["values"],
            serde_json::json!([210.0, 190.0, 200.0])
        );
        assert_eq!(row["raw"][0]["median"], 200.0);
        assert_eq!(row["goal"]["at_least"], 2.5);
        assert_eq!(row["reached"], false);
        assert_eq!(json["machine"]["processors"], 2);
    }
}
