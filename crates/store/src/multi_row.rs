//! Statements with a list of rows in them: one round trip for many rows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sqlx::AssertSqlSafe;

use crate::StoreError;
use crate::sql::{Bind, Row};
use crate::tx::Tx;

/// How many rows a list has. A list is filled up with rows of nulls, so that
/// only this many statements per kind are ever parsed and planned.
const LENGTHS: [usize; 4] = [1, 4, 16, 64];

/// A statement around `($1, $2), ($3, $4), …`, a list that it names `r` and whose
/// columns are `column1`, `column2`, … on both engines. `column1` is a key, null
/// in the rows that fill the list up: the statement must pass over those.
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
    /// Runs the statement for all rows, which have equally many values of the
    /// same types. Answers what it returned, in no particular order.
    pub(crate) async fn run(
        &self,
        tx: &mut Tx<'_>,
        mut rows: Vec<Vec<Bind>>,
    ) -> Result<Vec<Row>, StoreError> {
        // Replicas that lock the same rows do so in the same order.
        rows.sort_by(|a, b| key(a).cmp(&key(b)));
        let mut returned = Vec::new();
        let mut rows = rows.into_iter();
        while rows.len() > 0 {
            let length = length(rows.len());
            let chunk: Vec<Vec<Bind>> = rows.by_ref().take(length).collect();
            let filler: Vec<Bind> = chunk
                .first()
                .into_iter()
                .flatten()
                .map(Bind::null_like)
                .collect();
            let text = self.text(length, filler.len());
            let missing = length - chunk.len();
            let mut values: Vec<Bind> = chunk.into_iter().flatten().collect();
            values.extend(std::iter::repeat_n(filler, missing).flatten());
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

fn key(row: &[Bind]) -> (Option<i64>, Option<&str>) {
    match row.first() {
        Some(Bind::Int(key)) => (*key, None),
        Some(Bind::Text(key)) => (None, key.as_deref()),
        Some(Bind::Bytes(_)) | None => (None, None),
    }
}

/// The shortest list that holds `rows`, or the longest.
fn length(rows: usize) -> usize {
    LENGTHS
        .into_iter()
        .find(|length| *length >= rows)
        .unwrap_or(LENGTHS[LENGTHS.len() - 1])
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
    fn the_shortest_list_that_holds_all_is_taken() {
        assert_eq!(
            [1, 2, 4, 5, 16, 17, 64, 65].map(length),
            [1, 4, 4, 16, 16, 64, 64, 64]
        );
    }
}
