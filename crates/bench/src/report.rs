//! Collected figures, their budgets, and how they are printed.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

/// Which side of the budget is good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Budget {
    /// The figure must not be above.
    AtMost(f64),
    /// The figure must not be below.
    AtLeast(f64),
    /// Shown for orientation.
    None,
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
struct Row {
    group: &'static str,
    what: String,
    measured: f64,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<String>,
    /// How much of the budget is used; 1 or less is within.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    verdict: &'static str,
}

/// All lines so far; each is also printed as a note when it is added, because a run takes minutes.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a figure.
    pub(crate) fn add(
        &mut self,
        group: &'static str,
        what: impl Into<String>,
        measured: f64,
        unit: &'static str,
        budget: Budget,
    ) {
        let (text, ratio) = match budget {
            Budget::AtMost(limit) => (Some(format!("<= {limit}")), Some(measured / limit)),
            Budget::AtLeast(limit) => (
                Some(format!(">= {limit}")),
                Some(limit / measured.max(f64::MIN_POSITIVE)),
            ),
            Budget::None => (None, None),
        };
        let verdict = match ratio {
            Some(ratio) if ratio <= 1.0 => "ok",
            Some(_) => "OVER",
            None => "-",
        };
        let row = Row {
            group,
            what: what.into(),
            measured,
            unit,
            budget: text,
            ratio,
            verdict,
        };
        note(&format!(
            "  {:<8} {}: {:.2} {}",
            row.group, row.what, row.measured, row.unit
        ));
        self.rows.push(row);
    }

    /// Adds a line that says why something was not measured.
    pub(crate) fn skipped(&mut self, group: &'static str, what: impl Into<String>, why: &str) {
        let what = what.into();
        note(&format!("SKIP bench {what}: {why}"));
        self.rows.push(Row {
            group,
            what,
            measured: 0.0,
            unit: "",
            budget: None,
            ratio: None,
            verdict: "skipped",
        });
    }

    /// Prints the table, or JSON on stdout and the table on stderr.
    pub(crate) fn print(&self, json: bool) -> Result<()> {
        let table = self.table();
        if json {
            note(&table);
            let mut out = std::io::stdout().lock();
            serde_json::to_writer_pretty(&mut out, &self.rows)?;
            writeln!(out)?;
        } else {
            writeln!(std::io::stdout().lock(), "{table}")?;
        }
        Ok(())
    }

    fn table(&self) -> String {
        let width = self
            .rows
            .iter()
            .map(|row| row.what.chars().count())
            .max()
            .unwrap_or(0);
        let mut lines = vec![format!(
            "{:<8} {:<width$} {:>12} {:<9} {:>10} {:>6} verdict",
            "group", "what", "measured", "unit", "budget", "ratio"
        )];
        for row in &self.rows {
            let ratio = row
                .ratio
                .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
            let budget = row.budget.as_deref().unwrap_or("-");
            lines.push(format!(
                "{:<8} {:<width$} {:>12.2} {:<9} {:>10} {:>6} {}",
                row.group, row.what, row.measured, row.unit, budget, ratio, row.verdict
            ));
        }
        let over = self.rows.iter().filter(|row| row.verdict == "OVER").count();
        let skipped = self
            .rows
            .iter()
            .filter(|row| row.verdict == "skipped")
            .count();
        lines.push(format!(
            "{} figures, {over} over budget, {skipped} skipped",
            self.rows.len()
        ));
        lines.join("\n")
    }
}

/// A line of progress on stderr.
pub(crate) fn note(text: &str) {
    // Nothing sensible can be done when stderr is gone.
    let _gone = writeln!(std::io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_used_part_of_the_budget() {
        let mut report = Report::new();
        report.add("a", "time", 12.0, "ms", Budget::AtMost(10.0));
        report.add("a", "rate", 1200.0, "/s", Budget::AtLeast(600.0));
        report.add("a", "size", 3.0, "MiB", Budget::None);
        let verdicts: Vec<_> = report.rows.iter().map(|r| (r.verdict, r.ratio)).collect();
        assert_eq!(
            verdicts,
            [("OVER", Some(1.2)), ("ok", Some(0.5)), ("-", None)]
        );
        assert!(
            report
                .table()
                .ends_with("3 figures, 1 over budget, 0 skipped")
        );
    }
}
