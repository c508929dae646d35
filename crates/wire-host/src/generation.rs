//! Which generations of this contract two programs have in common.
//!
//! Messages are append-only: fields are added as optional, never renamed or removed, and unknown
//! ones are ignored, so programs of different releases understand each other without knowing it. A
//! change that cannot be made that way raises [`NEWEST`]; [`OLDEST`] is the oldest generation that
//! this side still speaks. Both ends state theirs in a header of every request and answer, and the
//! newest that both speak is spoken. Who states none is of the first.

use std::fmt;

use http::HeaderMap;

/// The newest generation that this side speaks.
pub const NEWEST: u32 = 1;
/// The oldest.
pub const OLDEST: u32 = 1;
/// What carries them: `<oldest>-<newest>`.
pub const HEADER: &str = "fuse-generations";

/// From the oldest to the newest that a program speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generations {
    oldest: u32,
    newest: u32,
}

impl Generations {
    /// What this side speaks.
    pub const OURS: Self = Self {
        oldest: OLDEST,
        newest: NEWEST,
    };

    /// Before there was a header.
    const UNSTATED: Self = Self {
        oldest: 1,
        newest: 1,
    };

    /// What the sender of these headers speaks.
    #[must_use]
    pub fn stated_in(headers: &HeaderMap) -> Self {
        let text = headers.get(HEADER).and_then(|value| value.to_str().ok());
        text.and_then(Self::parse).unwrap_or(Self::UNSTATED)
    }

    fn parse(text: &str) -> Option<Self> {
        let (oldest, newest) = text.split_once('-')?;
        let (oldest, newest) = (oldest.parse().ok()?, newest.parse().ok()?);
        (oldest <= newest).then_some(Self { oldest, newest })
    }

    /// The newest that both speak.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// Whether this is the side to be updated, when there is nothing in common.
    #[must_use]
    pub fn is_behind(self, other: Self) -> bool {
        self.newest < other.oldest
    }
}

impl fmt::Display for Generations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.oldest, self.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speaks(oldest: u32, newest: u32) -> Generations {
        Generations { oldest, newest }
    }

    #[test]
    fn the_newest_that_both_speak() {
        for (ours, theirs, common) in [
            (speaks(1, 1), speaks(1, 1), Some(1)),
            (speaks(1, 3), speaks(2, 5), Some(3)),
            (speaks(2, 5), speaks(1, 3), Some(3)),
            (speaks(1, 4), speaks(2, 3), Some(3)),
            (speaks(1, 1), speaks(2, 3), None),
            (speaks(4, 5), speaks(2, 3), None),
        ] {
            assert_eq!(ours.common(theirs), common, "{ours} {theirs}");
            assert_eq!(theirs.common(ours), common, "{theirs} {ours}");
        }
        assert!(speaks(1, 1).is_behind(speaks(2, 3)));
        assert!(!speaks(4, 5).is_behind(speaks(2, 3)));
    }

    #[test]
    fn who_states_nothing_sensible_is_of_the_first() {
        let stated = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, text.parse().unwrap());
            Generations::stated_in(&headers)
        };
        assert_eq!(stated(&speaks(2, 7).to_string()), speaks(2, 7));
        for text in ["", "2", "3-2", "a-b", "1-2-3", "-1-2"] {
            assert_eq!(stated(text), Generations::UNSTATED, "{text:?}");
        }
        let none = HeaderMap::new();
        assert_eq!(Generations::stated_in(&none), Generations::UNSTATED);
    }
}
