//! Statements with a list of rows in them: one round trip for many rows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sqlx::AssertSqlSafe;

use crate::StoreError;
use crate::sql::{Bind, Row};
use crate::tx::Tx;

/// Numbers of rows that are sent at a time. Few, so that few statements are
/// prepared; many enough that most lists need one or two.
const LENGTHS: [usize; 12] = [64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1];

/// A statement around `($1, $2), ($3, $4), …`. In it, a list that is given a
/// name has the columns `column1`, `column2`, … on both engines.
#[derive(Debug)]
pub(crate) struct MultiRow {
    /// Completes "the database refused to …".
    pub(crate) step: &'static str,
    /// What comes before the list.
    pub(crate) before: &'static str,
    /// What comes after it.
    pub(crate) after: &'static str,
}

impl MultiRow {
    /// Runs the statement for all rows, which have equally many values. Answers
    /// what it returned, in no particular order.
    pub(crate) async fn run(
        &self,
        tx: &mut Tx<'_>,
        rows: Vec<Vec<Bind>>,
    ) -> Result<Vec<Row>, StoreError> {
        let mut returned = Vec::new();
        let mut rows = rows.into_iter();
        while rows.len() > 0 {
            let take = length(rows.len());
            let chunk: Vec<Vec<Bind>> = rows.by_ref().take(take).collect();
            let text = self.text(take, chunk.first().map_or(0, Vec::len));
            let values = chunk.into_iter().flatten().collect();
            returned.extend(tx.fetch(self.step, AssertSqlSafe(text), values).await?);
        }
        Ok(returned)
    }

    fn text(&self, rows: usize, columns: usize) -> String {
        let mut text = self.before.to_owned();
        for at in 0..rows * columns {
            let separator = match at {
                0 => "(",
                _ if at % columns == 0 => "), (",
                _ => ", ",
            };
            // Writing to a String cannot fail.
            let _infallible = write!(text, "{separator}${}", at + 1);
        }
        text.push(')');
        text.push_str(self.after);
        text
    }
}

/// The longest list that `rows` fill.
fn length(rows: usize) -> usize {
    LENGTHS
        .into_iter()
        .find(|length| *length <= rows)
        .unwrap_or(rows)
}

/// Splits a list so that no two of a part have the same key: a statement must
/// not meet a row twice. Answers places in the list; the order of equal keys is
/// kept from part to part.
pub(crate) fn rounds<K: Ord>(keys: impl Iterator<Item = K>) -> Vec<Vec<usize>> {
    let mut seen: BTreeMap<K, usize> = BTreeMap::new();
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    for (at, key) in keys.enumerate() {
        let count = seen.entry(key).or_default();
        if rounds.len() == *count {
            rounds.push(Vec::new());
        }
        if let Some(round) = rounds.get_mut(*count) {
            round.push(at);
        }
        *count += 1;
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_number_their_placeholders() {
        let sql = MultiRow {
            step: "test",
            before: "INSERT INTO t VALUES ",
            after: " END",
        };
        assert_eq!(sql.text(1, 1), "INSERT INTO t VALUES ($1) END");
        assert_eq!(
            sql.text(2, 3),
            "INSERT INTO t VALUES ($1, $2, $3), ($4, $5, $6) END"
        );
    }

    #[test]
    fn rounds_keep_equal_keys_apart_and_in_order() {
        assert_eq!(rounds("abcab".chars()), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(rounds("aaa".chars()), [[0], [1], [2]]);
        assert!(rounds("".chars()).is_empty());
    }

    #[test]
    fn lists_of_any_length_are_sent_in_few_parts() {
        for rows in 1..200usize {
            let (mut left, mut parts) = (rows, 0);
            while left > 0 {
                left -= length(left);
                parts += 1;
            }
            assert!(
                parts <= 3 + rows / 64,
                "{rows} rows take {parts} statements"
            );
        }
    }
}
