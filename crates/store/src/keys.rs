//! Every sealed value of the store at once: which of them open, and sealing them anew
//! under the current key.
//!
//! Rewriting is guarded by the old value, one row at a time, so it may run beside any
//! number of replicas, and be stopped and started again: what is sealed under the
//! current key already is passed over.

use std::collections::BTreeSet;

use fuse_model::HostId;
use sqlx::AssertSqlSafe;

use crate::environment::{GUEST_TOKEN, SECRETS};
use crate::host::TOKEN;
use crate::sql::{Row, binds};
use crate::tx::Tx;
use crate::vault::OpenedWith;
use crate::writer::{Applied, Write};
use crate::{Store, StoreError, VaultError};

/// Rows read at a time.
const PAGE: u32 = 500;
/// How often values that replicas changed meanwhile are looked at again.
const PASSES: u32 = 5;

/// Which of the sealed values open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyReport {
    /// Those under the current key.
    pub current: u64,
    /// Those under the previous key, in an older form, or not sealed at all.
    pub outdated: u64,
    /// Those that open with neither key, as `host x` or `environment x`; one with two
    /// such values is named once.
    pub unreadable: BTreeSet<String>,
    /// The hosts among them.
    pub hosts: Vec<HostId>,
}

/// What became of the sealed values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rekeyed {
    /// Sealed anew.
    pub rewritten: u64,
    /// As they are now.
    pub report: KeyReport,
}

/// A column with sealed values.
#[derive(Debug, Clone, Copy)]
struct Place {
    table: &'static str,
    column: &'static str,
    /// What the vault binds the values to, next to the row's id.
    entity: &'static str,
    /// Names a row for people.
    noun: &'static str,
    /// Selects 1 for a sealed value; 0 for one that was stored without a key.
    sealed: &'static str,
    /// What else becomes true of a row that is sealed anew.
    also: &'static str,
}

const PLACES: [Place; 3] = [
    Place {
        table: "hosts",
        column: "token",
        entity: TOKEN,
        noun: "host",
        sealed: "token_sealed",
        also: ", token_sealed = 1",
    },
    Place {
        table: "environments",
        column: "guest_token",
        entity: GUEST_TOKEN,
        noun: "environment",
        sealed: "1",
        also: "",
    },
    Place {
        table: "environments",
        column: "secrets",
        entity: SECRETS,
        noun: "environment",
        sealed: "1",
        also: "",
    },
];

/// A stored value.
struct Value {
    id: String,
    is_sealed: bool,
    bytes: Vec<u8>,
}

impl Store {
    /// Tries every sealed value.
    ///
    /// # Errors
    /// The database fails.
    pub async fn key_report(&self) -> Result<KeyReport, StoreError> {
        let mut report = KeyReport::default();
        for place in PLACES {
            let mut after = String::new();
            loop {
                let page = self.page(place, &after).await?;
                for value in &page {
                    self.note(place, value, &mut report);
                }
                match page.into_iter().next_back() {
                    Some(last) => after = last.id,
                    None => break,
                }
            }
        }
        Ok(report)
    }

    /// Seals every value anew that is not under the current key.
    ///
    /// # Errors
    /// The database fails, or there is no key.
    pub async fn rekey(&self) -> Result<Rekeyed, StoreError> {
        let mut rewritten = 0;
        for _ in 0..PASSES {
            let pass = self.rekey_once().await?;
            rewritten += pass;
            if pass == 0 {
                break;
            }
        }
        let report = self.key_report().await?;
        Ok(Rekeyed { rewritten, report })
    }

    async fn rekey_once(&self) -> Result<u64, StoreError> {
        let mut rewritten = 0;
        for place in PLACES {
            let mut after = String::new();
            loop {
                let page = self.page(place, &after).await?;
                let Some(last) = page.last() else { break };
                after.clone_from(&last.id);
                for value in page {
                    rewritten += self.renew(place, value).await?;
                }
            }
        }
        Ok(rewritten)
    }

    /// Seals one value anew, if that is needed and possible. One that a replica has
    /// changed meanwhile stays as it is.
    async fn renew(&self, place: Place, value: Value) -> Result<u64, StoreError> {
        let plain = match self.open_value(place, &value) {
            Ok((_, OpenedWith::Current)) | Err(_) => return Ok(0),
            Ok((plain, OpenedWith::Older)) => plain,
        };
        let sealed = self.vault().seal(place.entity, &value.id, &plain);
        let new = sealed.map_err(|source| StoreError::Secret {
            entity: place.noun,
            id: value.id.clone(),
            source,
        })?;
        let reseal = Reseal { place, value, new };
        self.write(reseal).await
    }

    fn note(&self, place: Place, value: &Value, report: &mut KeyReport) {
        match self.open_value(place, value) {
            Ok((_, OpenedWith::Current)) => report.current += 1,
            Ok((_, OpenedWith::Older)) => report.outdated += 1,
            Err(_) => {
                report
                    .unreadable
                    .insert(format!("{} {}", place.noun, value.id));
                if place.table == "hosts" {
                    report.hosts.push(HostId::new(value.id.clone()));
                }
            }
        }
    }

    fn open_value(&self, place: Place, value: &Value) -> Result<(Vec<u8>, OpenedWith), VaultError> {
        if !value.is_sealed {
            return Ok((value.bytes.clone(), OpenedWith::Older));
        }
        self.vault()
            .open_and_tell(place.entity, &value.id, &value.bytes)
    }

    async fn page(&self, place: Place, after: &str) -> Result<Vec<Value>, StoreError> {
        let Place {
            table,
            column,
            sealed,
            ..
        } = place;
        let sql = format!(
            "SELECT id, CAST({sealed} AS BIGINT), {column} FROM {table} \
             WHERE id > $1 AND {column} IS NOT NULL ORDER BY id LIMIT $2"
        );
        let rows = self
            .read("read secrets", AssertSqlSafe(sql), binds![after, PAGE])
            .await?;
        let value = |row: &Row| {
            let mut columns = row.columns(table);
            Ok(Value {
                id: columns.text("id")?,
                is_sealed: columns.int("sealed")? == 1,
                bytes: columns.bytes(column)?,
            })
        };
        rows.iter().map(value).collect()
    }
}

struct Reseal {
    place: Place,
    value: Value,
    new: Vec<u8>,
}

impl Write for Reseal {
    type Out = u64;
    const ENTITY: &'static str = "secret";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<u64>, StoreError> {
        let Place {
            table,
            column,
            also,
            ..
        } = self.place;
        let sql = format!("UPDATE {table} SET {column} = $2{also} WHERE id = $1 AND {column} = $3");
        let values = binds![
            self.value.id.as_str(),
            self.new.clone(),
            self.value.bytes.clone()
        ];
        tx.execute("seal a secret anew", AssertSqlSafe(sql), values)
            .await
            .map(Applied::Keep)
    }
}
