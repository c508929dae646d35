//! The thin layer that lets one SQL text run on both engines.
//!
//! Statements use `$1` placeholders and three kinds of values: integers, text
//! and bytes. A [`Conn`] is a connection of either engine, a [`Row`] a row of
//! either; [`Columns`] reads a row's columns in the order of the select list.
//! (sqlx's own `Any` driver would do, but it copies every value of every row
//! through an extra representation and hides the engines' connect options.)

use fuse_model::truncate_to_micros;
use jiff::Timestamp;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Arguments as _, Connection as _, Executor as _, Row as _, SqlSafeStr};

use crate::StoreError;

/// A value for a placeholder.
#[derive(Debug, Clone)]
pub(crate) enum Bind {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

impl Bind {
    /// The null of the same type.
    pub(crate) const fn null_like(&self) -> Self {
        match self {
            Self::Int(_) => Self::Int(None),
            Self::Text(_) => Self::Text(None),
            Self::Bytes(_) => Self::Bytes(None),
        }
    }
}

impl From<i64> for Bind {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}

impl From<i32> for Bind {
    fn from(value: i32) -> Self {
        Self::Int(Some(i64::from(value)))
    }
}

impl From<u32> for Bind {
    fn from(value: u32) -> Self {
        Self::Int(Some(i64::from(value)))
    }
}

impl From<Option<i64>> for Bind {
    fn from(value: Option<i64>) -> Self {
        Self::Int(value)
    }
}

impl From<Timestamp> for Bind {
    fn from(value: Timestamp) -> Self {
        Self::Int(Some(truncate_to_micros(value).as_microsecond()))
    }
}

impl From<Option<Timestamp>> for Bind {
    fn from(value: Option<Timestamp>) -> Self {
        Self::Int(value.map(Timestamp::as_microsecond))
    }
}

impl From<&str> for Bind {
    fn from(value: &str) -> Self {
        Self::from(value.to_owned())
    }
}

impl From<String> for Bind {
    fn from(value: String) -> Self {
        Self::Text(Some(without_nul(value)))
    }
}

impl From<Option<&str>> for Bind {
    fn from(value: Option<&str>) -> Self {
        Self::Text(value.map(|text| without_nul(text.to_owned())))
    }
}

impl From<Vec<u8>> for Bind {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(Some(value))
    }
}

impl From<Option<Vec<u8>>> for Bind {
    fn from(value: Option<Vec<u8>>) -> Self {
        Self::Bytes(value)
    }
}

/// PostgreSQL has no NUL in text. What guests print may have one, and so may a
/// hostile id: both are kept, on either engine, with the symbol for it instead.
pub(crate) fn without_nul(text: String) -> String {
    if text.contains('\0') {
        text.replace('\0', "\u{2400}")
    } else {
        text
    }
}

/// The values of a statement in the order of its placeholders.
macro_rules! binds {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::sql::Bind::from($value)),*]
    };
}
pub(crate) use binds;

/// A connection to either engine.
#[derive(Debug)]
pub(crate) enum Conn {
    Sqlite(Box<SqliteConnection>),
    Postgres(Box<PgConnection>),
}

impl Conn {
    /// Runs one or more statements without values.
    pub(crate) async fn batch(&mut self, sql: impl SqlSafeStr + Send) -> Result<(), sqlx::Error> {
        let sql = sqlx::raw_sql(sql);
        match self {
            Self::Sqlite(conn) => conn.execute(sql).await.map(drop),
            Self::Postgres(conn) => conn.execute(sql).await.map(drop),
        }
    }

    /// Runs a statement and answers how many rows it changed.
    pub(crate) async fn execute(
        &mut self,
        sql: impl SqlSafeStr + Send,
        binds: Vec<Bind>,
    ) -> Result<u64, sqlx::Error> {
        match self {
            Self::Sqlite(conn) => {
                let query = sqlx::query_with(sql, sqlite_arguments(binds)?);
                Ok(conn.execute(query).await?.rows_affected())
            }
            Self::Postgres(conn) => {
                let query = sqlx::query_with(sql, postgres_arguments(binds)?);
                Ok(conn.execute(query).await?.rows_affected())
            }
        }
    }

    /// Runs a statement and answers its rows.
    pub(crate) async fn fetch(
        &mut self,
        sql: impl SqlSafeStr + Send,
        binds: Vec<Bind>,
    ) -> Result<Vec<Row>, sqlx::Error> {
        match self {
            Self::Sqlite(conn) => {
                let query = sqlx::query_with(sql, sqlite_arguments(binds)?);
                let rows = conn.fetch_all(query).await?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
            Self::Postgres(conn) => {
                let query = sqlx::query_with(sql, postgres_arguments(binds)?);
                let rows = conn.fetch_all(query).await?;
                Ok(rows.into_iter().map(Row::Postgres).collect())
            }
        }
    }

    /// Says goodbye and closes.
    pub(crate) async fn close(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(conn) => conn.close().await,
            Self::Postgres(conn) => conn.close().await,
        }
    }
}

fn sqlite_arguments(binds: Vec<Bind>) -> Result<SqliteArguments, sqlx::Error> {
    let mut arguments = SqliteArguments::default();
    for bind in binds {
        match bind {
            Bind::Int(value) => sqlx::Arguments::add(&mut arguments, value),
            Bind::Text(value) => sqlx::Arguments::add(&mut arguments, value),
            Bind::Bytes(value) => sqlx::Arguments::add(&mut arguments, value),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

fn postgres_arguments(binds: Vec<Bind>) -> Result<PgArguments, sqlx::Error> {
    let mut arguments = PgArguments::default();
    for bind in binds {
        match bind {
            Bind::Int(value) => arguments.add(value),
            Bind::Text(value) => arguments.add(value),
            Bind::Bytes(value) => arguments.add(value),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

/// A row of either engine.
#[derive(Debug)]
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl Row {
    /// Reads the columns in order; `table` names them in errors.
    pub(crate) const fn columns(&self, table: &'static str) -> Columns<'_> {
        Columns {
            row: self,
            table,
            at: 0,
        }
    }
}

/// A cursor over the columns of a row.
#[derive(Debug)]
pub(crate) struct Columns<'r> {
    row: &'r Row,
    table: &'static str,
    at: usize,
}

macro_rules! next_column {
    ($self:ident, $column:ident, $type:ty) => {{
        let at = $self.at;
        $self.at += 1;
        // Unchecked: SQLite has no column types, and a value of the wrong type
        // fails to decode on either engine.
        let value = match $self.row {
            Row::Sqlite(row) => row.try_get_unchecked::<$type, _>(at),
            Row::Postgres(row) => row.try_get_unchecked::<$type, _>(at),
        };
        value.map_err(|error| $self.corrupt($column, error))
    }};
}

impl Columns<'_> {
    /// The error for a column whose value makes no sense.
    pub(crate) fn corrupt(
        &self,
        column: &'static str,
        reason: impl std::fmt::Display,
    ) -> StoreError {
        StoreError::Corrupt {
            table: self.table,
            column,
            reason: reason.to_string(),
        }
    }

    pub(crate) fn int(&mut self, column: &'static str) -> Result<i64, StoreError> {
        next_column!(self, column, i64)
    }

    pub(crate) fn opt_int(&mut self, column: &'static str) -> Result<Option<i64>, StoreError> {
        next_column!(self, column, Option<i64>)
    }

    /// An integer of a smaller type, such as a capacity.
    pub(crate) fn small<T: TryFrom<i64>>(&mut self, column: &'static str) -> Result<T, StoreError> {
        let value = self.int(column)?;
        T::try_from(value).map_err(|_| self.corrupt(column, format!("{value} is out of range")))
    }

    pub(crate) fn text(&mut self, column: &'static str) -> Result<String, StoreError> {
        next_column!(self, column, String)
    }

    pub(crate) fn opt_text(&mut self, column: &'static str) -> Result<Option<String>, StoreError> {
        next_column!(self, column, Option<String>)
    }

    pub(crate) fn bytes(&mut self, column: &'static str) -> Result<Vec<u8>, StoreError> {
        next_column!(self, column, Vec<u8>)
    }

    pub(crate) fn opt_bytes(
        &mut self,
        column: &'static str,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        next_column!(self, column, Option<Vec<u8>>)
    }

    pub(crate) fn time(&mut self, column: &'static str) -> Result<Timestamp, StoreError> {
        let micros = self.int(column)?;
        Timestamp::from_microsecond(micros).map_err(|error| self.corrupt(column, error))
    }

    pub(crate) fn opt_time(
        &mut self,
        column: &'static str,
    ) -> Result<Option<Timestamp>, StoreError> {
        let Some(micros) = self.opt_int(column)? else {
            return Ok(None);
        };
        Timestamp::from_microsecond(micros)
            .map(Some)
            .map_err(|error| self.corrupt(column, error))
    }

    /// Text that parses to a value of a closed list or an id.
    pub(crate) fn parsed<T>(&mut self, column: &'static str) -> Result<T, StoreError>
    where
        T: std::str::FromStr,
        T::Err: std::fmt::Display,
    {
        self.text(column)?
            .parse()
            .map_err(|error| self.corrupt(column, error))
    }

    /// A JSON document.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(
        &mut self,
        column: &'static str,
    ) -> Result<T, StoreError> {
        serde_json::from_str(&self.text(column)?).map_err(|error| self.corrupt(column, error))
    }
}

/// A document as stored. Domain types have string keys and no failing
/// serialisers, so this does not fail in practice.
pub(crate) fn to_json<T: serde::Serialize>(
    table: &'static str,
    column: &'static str,
    value: &T,
) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Corrupt {
        table,
        column,
        reason: error.to_string(),
    })
}
