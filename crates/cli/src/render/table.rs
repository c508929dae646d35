//! Rounded tables.

use comfy_table::{Attribute, Cell, Color, ContentLineStyle, LineStyle, Table, TableStyle};

use super::or_dash;
use super::style::{self, Tone};

const ROUNDED: TableStyle = TableStyle::new()
    .top_border(LineStyle::new('╭', '─', '┬', '╮'))
    .header_lines(ContentLineStyle::new('│', '│', '│'))
    .header_separator(LineStyle::new('├', '─', '┼', '┤'))
    .content_lines(ContentLineStyle::new('│', '│', '│'))
    .bottom_border(LineStyle::new('╰', '─', '┴', '╯'));

/// One cell of a row.
pub(crate) type TableCell = Cell;

/// A cell of text; an empty one shows `-`.
pub(crate) fn text(value: &str) -> TableCell {
    Cell::new(or_dash(value))
}

/// The mark of the row in use, in a column without a name.
pub(crate) fn mark(marked: bool) -> TableCell {
    Cell::new(if marked { "*" } else { "" })
}

/// A state, in its colour.
pub(crate) fn state(word: &str) -> TableCell {
    let cell = Cell::new(or_dash(word));
    match style::tone(word) {
        Tone::Good => cell.fg(Color::Green),
        Tone::Bad => cell.fg(Color::Red),
        Tone::Moving => cell.fg(Color::Yellow),
        Tone::Plain => cell,
    }
}

/// A cell that says what is wrong.
pub(crate) fn trouble(text: &str) -> TableCell {
    Cell::new(text).fg(Color::Red)
}

/// Draws a table with a bold header.
///
/// Rows are never wrapped: a table is data, and a script that cuts columns must find one row per
/// line.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<TableCell>>) -> String {
    let bold = |name: &&str| Cell::new(name).add_attribute(Attribute::Bold);
    let mut table = Table::new();
    table
        .load_style(ROUNDED)
        .enforce_styling()
        .set_header(header.iter().map(bold))
        .add_rows(rows);
    format!("{table}\n")
}

/// Columns of the terminal; 80 when there is none.
pub(crate) fn terminal_columns() -> u16 {
    Table::new().width().unwrap_or(80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_box_without_rules_between_rows() {
        let rows = vec![
            vec![
                mark(true),
                text("prod"),
                state("running"),
                text("http://10.0.0.5:8080"),
            ],
            vec![mark(false), text("dev"), state("failed"), text("")],
        ];
        let coloured = table(&["", "NAME", "STATE", "BASE URL"], rows);
        assert!(coloured.contains("\u{1b}["), "{coloured}");
        let plain = anstream::adapter::strip_str(&coloured).to_string();
        assert_eq!(
            plain,
            "\
╭───┬──────┬─────────┬──────────────────────╮
│   │ NAME │ STATE   │ BASE URL             │
├───┼──────┼─────────┼──────────────────────┤
│ * │ prod │ running │ http://10.0.0.5:8080 │
│   │ dev  │ failed  │ -                    │
╰───┴──────┴─────────┴──────────────────────╯
"
        );
    }
}
