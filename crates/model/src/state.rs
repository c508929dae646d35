//! The life of an environment as one closed table.
//!
//! ```text
//!  (none) -> provisioning -> running -> draining
//!                 |   \         |          |
//!                 |    \________|__________|____ destroying -> destroyed
//!                 v
//!               failed
//! ```
//!
//! `destroyed` and `failed` are seen on the event stream only: the record is
//! removed in the transaction that writes the event. [`State::next`] is the
//! only way to a new state; it names every pair, so adding a state or a trigger
//! fails the build until each pair is decided.
//!
//! Row numbers refer to the transition table of the lifecycle specification.
#![deny(clippy::wildcard_enum_match_arm)]

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::names::named;

/// Where an environment is in its life. `Destroyed` and `Failed` are never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// A host has been picked and the VM is booting.
    Provisioning,
    /// The VM is up and its guest agent is reachable.
    Running,
    /// A graceful stop of the workload was asked for; the VM still exists.
    Draining,
    /// The VM is being torn down.
    Destroying,
    /// The VM is gone.
    Destroyed,
    /// The create did not succeed.
    Failed,
}

/// What happened to an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// The guest agent was started and answered (row 3), or recovery found the
    /// VM alive on its host (row 13).
    Started,
    /// Placement, boot or a step after it failed and was undone (row 4).
    CreateFailed,
    /// Somebody asked for a drain (row 5), or a migration cut over (row 16).
    DrainRequested,
    /// Somebody asked for it to be destroyed (row 7).
    DestroyRequested,
    /// The runtime ceiling was passed (row 8).
    RuntimeExceeded,
    /// It was idle for too long (row 9).
    IdleExceeded,
    /// Its host no longer lists it (row 10).
    Lost,
    /// Its task is done (row 11).
    TaskCompleted,
    /// Recovery did not find it on its host (row 12).
    NotRecovered,
    /// The host confirmed that the VM is gone (row 14).
    DestroyConfirmed,
    /// The host could not destroy it; the reconcile loop tries again (row 15).
    DestroyRefused,
}

/// A trigger that the state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("an environment in state {from} does not accept {trigger:?}")]
pub struct IllegalTransition {
    /// The state that it is in.
    pub from: State,
    /// What was attempted.
    pub trigger: Trigger,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Provisioning,
        Self::Running,
        Self::Draining,
        Self::Destroying,
        Self::Destroyed,
        Self::Failed,
    ];
    /// The end of the stream; the record is gone by then.
    pub const TERMINAL: [Self; 2] = [Self::Destroyed, Self::Failed];
    /// States of a record; all of them keep their share of the host, which is
    /// given back in the transaction that removes the record.
    pub const HOLDS_CAPACITY: [Self; 4] = [
        Self::Provisioning,
        Self::Running,
        Self::Draining,
        Self::Destroying,
    ];
    /// States whose VM may be missing from its host's listing without that
    /// meaning anything: it is not there yet, or not there any more.
    pub const MAY_BE_ABSENT: [Self; 2] = [Self::Provisioning, Self::Destroying];
    /// States in which guest operations (exec, attach, drain, …) are accepted.
    pub const ACCEPTS_OPERATIONS: [Self; 1] = [Self::Running];

    /// The state after `trigger`. A repeat of what has already happened leaves
    /// the state as it is.
    ///
    /// # Errors
    /// The state does not allow the trigger.
    pub const fn next(self, trigger: Trigger) -> Result<Self, IllegalTransition> {
        use Trigger as T;
        let to = match self {
            Self::Provisioning => match trigger {
                T::Started => Some(Self::Running),
                T::CreateFailed => Some(Self::Failed),
                T::DestroyRequested | T::NotRecovered => Some(Self::Destroying),
                T::DrainRequested
                | T::RuntimeExceeded
                | T::IdleExceeded
                | T::Lost
                | T::TaskCompleted
                | T::DestroyConfirmed
                | T::DestroyRefused => None,
            },
            Self::Running => match trigger {
                T::Started => Some(self),
                T::DrainRequested => Some(Self::Draining),
                T::DestroyRequested
                | T::RuntimeExceeded
                | T::IdleExceeded
                | T::Lost
                | T::TaskCompleted
                | T::NotRecovered => Some(Self::Destroying),
                T::CreateFailed | T::DestroyConfirmed | T::DestroyRefused => None,
            },
            Self::Draining => match trigger {
                T::DrainRequested => Some(self),
                T::DestroyRequested | T::RuntimeExceeded | T::Lost | T::NotRecovered => {
                    Some(Self::Destroying)
                }
                T::Started
                | T::CreateFailed
                | T::IdleExceeded
                | T::TaskCompleted
                | T::DestroyConfirmed
                | T::DestroyRefused => None,
            },
            Self::Destroying => match trigger {
                T::DestroyRequested
                | T::RuntimeExceeded
                | T::IdleExceeded
                | T::Lost
                | T::TaskCompleted
                | T::NotRecovered
                | T::DestroyRefused => Some(self),
                T::DestroyConfirmed => Some(Self::Destroyed),
                T::Started | T::CreateFailed | T::DrainRequested => None,
            },
            Self::Destroyed | Self::Failed => match trigger {
                T::Started
                | T::CreateFailed
                | T::DrainRequested
                | T::DestroyRequested
                | T::RuntimeExceeded
                | T::IdleExceeded
                | T::Lost
                | T::TaskCompleted
                | T::NotRecovered
                | T::DestroyConfirmed
                | T::DestroyRefused => None,
            },
        };
        match to {
            Some(state) => Ok(state),
            None => Err(IllegalTransition {
                from: self,
                trigger,
            }),
        }
    }

    /// Whether the state is in a named set.
    pub fn is_in(self, set: &[Self]) -> bool {
        set.contains(&self)
    }

    /// Whether nothing follows.
    pub fn is_terminal(self) -> bool {
        self.is_in(&Self::TERMINAL)
    }

    /// The name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "provisioning",
            Self::Running => "running",
            Self::Draining => "draining",
            Self::Destroying => "destroying",
            Self::Destroyed => "destroyed",
            Self::Failed => "failed",
        }
    }
}

impl Trigger {
    /// Every trigger.
    pub const ALL: [Self; 11] = [
        Self::Started,
        Self::CreateFailed,
        Self::DrainRequested,
        Self::DestroyRequested,
        Self::RuntimeExceeded,
        Self::IdleExceeded,
        Self::Lost,
        Self::TaskCompleted,
        Self::NotRecovered,
        Self::DestroyConfirmed,
        Self::DestroyRefused,
    ];
}

named!(State, "state");

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole table, written independently of `next`: one line per state,
    /// one letter per trigger in the order of `Trigger::ALL`; `.` = refused.
    const TABLE: [(State, &str); 6] = [
        //                     Started CreateFailed Drain Destroy Runtime Idle Lost Done NotRec Confirmed Refused
        (State::Provisioning, "RF.D....D.."),
        (State::Running, "R.nDDDDDD.."),
        (State::Draining, "..nDD.D.D.."),
        (State::Destroying, "...DDDDDDXD"),
        (State::Destroyed, "..........."),
        (State::Failed, "..........."),
    ];

    fn decode(letter: char) -> Option<State> {
        Some(match letter {
            'R' => State::Running,
            'n' => State::Draining,
            'D' => State::Destroying,
            'X' => State::Destroyed,
            'F' => State::Failed,
            _ => return None,
        })
    }

    #[test]
    fn every_pair_is_as_the_table_says() {
        for (state, row) in TABLE {
            assert_eq!(row.len(), Trigger::ALL.len());
            for (trigger, letter) in Trigger::ALL.into_iter().zip(row.chars()) {
                let expected = decode(letter).ok_or(IllegalTransition {
                    from: state,
                    trigger,
                });
                assert_eq!(state.next(trigger), expected, "{state} on {trigger:?}");
            }
        }
    }

    #[test]
    fn a_destroy_is_accepted_in_every_stored_state() {
        for state in State::HOLDS_CAPACITY {
            assert_eq!(state.next(Trigger::DestroyRequested), Ok(State::Destroying));
        }
    }

    #[test]
    fn the_named_sets_partition_the_states() {
        for state in State::ALL {
            assert_ne!(state.is_terminal(), state.is_in(&State::HOLDS_CAPACITY));
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        assert!("gone".parse::<State>().is_err());
    }
}
