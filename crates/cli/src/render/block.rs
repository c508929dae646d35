//! Detail blocks: one `key value` line each.

use owo_colors::OwoColorize as _;

/// Key width of every block but the host's, before the separating space.
const WIDE: usize = 18;
/// Key width of the host block, separator included; fixed by the published documentation.
const HOST: usize = 14;

/// Rows of one object, in order.
#[derive(Debug, Default)]
pub(crate) struct Block {
    rows: Vec<(String, String)>,
}

impl Block {
    /// An empty block.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, key: impl Into<String>, value: impl Into<String>) -> &mut Self {
        self.rows.push((key.into(), value.into()));
        self
    }

    /// Adds a row unless the value is empty.
    pub(crate) fn row_if_some(&mut self, key: &str, value: &str) -> &mut Self {
        if !value.is_empty() {
            self.row(key, value);
        }
        self
    }

    /// Renders with the key column of all blocks but the host's: 18 columns and a space; a longer
    /// key widens the whole block.
    pub(crate) fn render(&self) -> String {
        let longest = self
            .rows
            .iter()
            .map(|(key, _)| key.chars().count())
            .max()
            .unwrap_or(0);
        self.render_at(longest.max(WIDE) + 1)
    }

    /// Renders with the key column of the host block: 14 columns, more if a key needs it.
    pub(crate) fn render_host(&self) -> String {
        let longest = self
            .rows
            .iter()
            .map(|(key, _)| key.chars().count())
            .max()
            .unwrap_or(0);
        self.render_at((longest + 1).max(HOST))
    }

    fn render_at(&self, column: usize) -> String {
        let mut text = String::new();
        for (key, value) in &self.rows {
            let padding = column.saturating_sub(key.chars().count());
            text.push_str(&key.bold().to_string());
            text.extend(std::iter::repeat_n(' ', padding));
            text.push_str(value);
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn keys_are_padded_and_a_long_one_widens_the_block() {
        let mut block = Block::new();
        block.row("id", "fuse-a").row("host id", "local");
        assert_eq!(
            plain(&block.render()),
            "id                 fuse-a\nhost id            local\n"
        );
        block.row("endpoint a-long-name", "x");
        assert_eq!(
            plain(&block.render()),
            "id                   fuse-a\nhost id              local\nendpoint a-long-name x\n"
        );
    }

    #[test]
    fn the_host_block_has_its_own_column() {
        let mut block = Block::new();
        block.row("id", "a").row("storage gb", "0 / 500");
        assert_eq!(
            plain(&block.render_host()),
            "id            a\nstorage gb    0 / 500\n"
        );
    }
}
