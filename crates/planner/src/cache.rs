//! Which layers and copies of snapshots are collected (lifecycle 12.9).
//!
//! A layer goes when nobody has used it for long enough, or when its tenant has more than it may
//! have: then the least recently used first. A copy of something that is gone goes at once. What
//! is in use, or was within [`GRACE`], stays, however many there are.

use std::collections::BTreeMap;
use std::time::Duration;

use fuse_model::SnapshotId;
use jiff::Timestamp;

/// Whoever found a layer has this long to start from it.
const GRACE: Duration = Duration::from_secs(600);

/// When layers are collected; zero is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimits {
    /// Time without use.
    pub idle: Duration,
    /// Layers of a tenant.
    pub max_per_tenant: u64,
}

/// A layer or a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// Its id.
    pub id: SnapshotId,
    /// Whose it is.
    pub tenant: String,
    /// Whether it is a layer that counts against what the tenant may have.
    pub counts: bool,
    /// When it was last used.
    pub used_at: Timestamp,
    /// Whether something depends on it.
    pub is_held: bool,
    /// Whether it is a copy of something that is gone.
    pub is_stray: bool,
}

/// Why something is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unused {
    /// Nobody used it for too long.
    Idle,
    /// Its tenant has too many.
    OverMax,
    /// It is a copy of something that is gone.
    Stray,
}

impl Unused {
    /// The name in audit entries.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::OverMax => "over_max",
            Self::Stray => "stray",
        }
    }
}

/// The moment since when nobody may have used what is collected at `now`.
#[must_use]
pub fn grace(now: Timestamp) -> Timestamp {
    now.checked_sub(GRACE).unwrap_or(Timestamp::MIN)
}

/// What of `cached` is collected at `now`, and why: idle and stray ones first, then those that are
/// too many, by tenant.
#[must_use]
pub fn unused(
    cached: &[Cached],
    limits: CacheLimits,
    now: Timestamp,
) -> Vec<(&SnapshotId, Unused)> {
    let is_free = |one: &Cached| !one.is_held && one.used_at <= grace(now);
    let idle_since = now.checked_sub(limits.idle).unwrap_or(Timestamp::MIN);
    let is_idle = |one: &Cached| !limits.idle.is_zero() && one.used_at < idle_since;
    let mut collected = Vec::new();
    let mut left: BTreeMap<&str, Vec<&Cached>> = BTreeMap::new();
    for one in cached {
        if is_free(one) && one.is_stray {
            collected.push((&one.id, Unused::Stray));
        } else if is_free(one) && is_idle(one) {
            collected.push((&one.id, Unused::Idle));
        } else if one.counts {
            left.entry(&one.tenant).or_default().push(one);
        }
    }
    if limits.max_per_tenant == 0 {
        return collected;
    }
    let max = usize::try_from(limits.max_per_tenant).unwrap_or(usize::MAX);
    for mut layers in left.into_values() {
        let over = layers.len().saturating_sub(max);
        layers.retain(|one| is_free(one));
        layers.sort_by_key(|one| (one.used_at, &one.id));
        let evicted = layers.into_iter().take(over);
        collected.extend(evicted.map(|one| (&one.id, Unused::OverMax)));
    }
    collected
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1_000_000;

    fn ago(seconds: i64) -> Timestamp {
        Timestamp::from_second(NOW - seconds).unwrap()
    }

    fn layer(id: &str, tenant: &str, used: i64) -> Cached {
        Cached {
            id: SnapshotId::new(id),
            tenant: tenant.to_owned(),
            counts: true,
            used_at: ago(used),
            is_held: false,
            is_stray: false,
        }
    }

    fn plan(cached: &[Cached], idle: u64, max: u64) -> Vec<String> {
        let limits = CacheLimits {
            idle: Duration::from_secs(idle),
            max_per_tenant: max,
        };
        let collected = unused(cached, limits, ago(0));
        let texts = collected
            .iter()
            .map(|(id, why)| format!("{id} {}", why.as_str()));
        texts.collect()
    }

    #[test]
    fn idle_layers_go_and_used_or_held_ones_stay() {
        let held = Cached {
            is_held: true,
            ..layer("held", "t", 9_000)
        };
        let cached = [layer("old", "t", 5_000), held, layer("new", "t", 3_000)];
        assert_eq!(plan(&cached, 4_000, 0), ["old idle"]);
        assert!(plan(&cached, 0, 0).is_empty());
        assert_eq!(plan(&[layer("just", "t", 599)], 1, 0), [""; 0]);
        assert_eq!(plan(&[layer("just", "t", 601)], 1, 0), ["just idle"]);
    }

    #[test]
    fn of_too_many_the_least_recently_used_go_and_each_tenant_for_itself() {
        let cached = [
            layer("b", "t", 2_000),
            layer("a", "t", 2_000),
            layer("c", "t", 1_000),
            // It counts, and it stays.
            layer("d", "t", 10),
            layer("other", "u", 9_000),
        ];
        assert_eq!(plan(&cached, 0, 2), ["a over_max", "b over_max"]);
        assert_eq!(plan(&cached, 0, 3), ["a over_max"]);
        assert!(plan(&cached, 0, 4).is_empty());
    }

    #[test]
    fn a_copy_goes_with_its_source_and_counts_for_nobody() {
        let copy = |id: &str, is_stray| Cached {
            counts: false,
            is_stray,
            ..layer(id, "t", 5_000)
        };
        let cached = [
            copy("stray", true),
            copy("copy", false),
            layer("a", "t", 700),
        ];
        assert_eq!(plan(&cached, 0, 1), ["stray stray"]);
        assert_eq!(
            plan(&cached, 600, 0),
            ["stray stray", "copy idle", "a idle"]
        );
    }

    proptest! {
        #[test]
        fn whatever_is_collected_may_be(
            cached in proptest::collection::vec((0u8..3, 0i64..5_000, any::<bool>(), any::<bool>()), 0..30),
            idle in 0u64..4_000,
            max in 0u64..6,
        ) {
            let cached: Vec<Cached> = cached
                .into_iter()
                .enumerate()
                .map(|(n, (tenant, used, is_held, counts))| Cached {
                    is_held,
                    counts,
                    ..layer(&n.to_string(), &tenant.to_string(), used)
                })
                .collect();
            let limits = CacheLimits { idle: Duration::from_secs(idle), max_per_tenant: max };
            let collected = unused(&cached, limits, ago(0));
            let find = |id: &SnapshotId| cached.iter().find(|one| one.id == *id).unwrap();
            let mut seen = std::collections::BTreeSet::new();
            for (id, why) in &collected {
                let one = find(id);
                prop_assert!(!one.is_held && one.used_at <= grace(ago(0)));
                prop_assert!(seen.insert(*id), "twice");
                match why {
                    Unused::Idle => prop_assert!(idle > 0 && one.used_at < ago(i64::try_from(idle).unwrap())),
                    Unused::OverMax => prop_assert!(max > 0 && one.counts),
                    Unused::Stray => prop_assert!(one.is_stray),
                }
            }
            // Nobody is left with more than he may have, unless all that are left have to stay.
            if max > 0 {
                for tenant in ["0", "1", "2"] {
                    let left: Vec<_> = cached
                        .iter()
                        .filter(|one| one.counts && one.tenant == tenant && !seen.contains(&one.id))
                        .collect();
                    let is_free = |one: &&&Cached| !one.is_held && one.used_at <= grace(ago(0));
                    prop_assert!(left.len() as u64 <= max || !left.iter().any(|one| is_free(&one)));
                }
            }
        }
    }
}
