//! What the subscribers of one environment share: its newest events, and who of them waits.
//!
//! An event is kept once, however many read it: a subscriber is a place in the log and a
//! waker. A topic ends with a terminal event; what follows under the same id is another
//! environment's and another topic's.
//!
//! Subscribers are woken in slices ([`Topic::wake_some`]), so that the tasks of some
//! thousand connections do not stand in the way of everything else that the process
//! does, the next event of the same environment included: who is not woken yet then
//! gets both at once.

use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use fuse_model::EnvironmentEvent;
use prometheus::IntCounter;

/// Most events that wait for a subscriber.
const CAPACITY: usize = 32;

/// An event, and the text that it becomes, which all subscribers share.
#[derive(Debug)]
pub struct SharedEvent {
    event: EnvironmentEvent,
    text: OnceLock<Bytes>,
}

impl SharedEvent {
    pub(super) fn new(event: EnvironmentEvent) -> Arc<Self> {
        Arc::new(Self {
            event,
            text: OnceLock::new(),
        })
    }

    /// What `render` makes of the event; the first caller's, for everybody.
    pub fn text(&self, render: impl FnOnce(&EnvironmentEvent) -> Bytes) -> Bytes {
        self.text.get_or_init(|| render(&self.event)).clone()
    }

    /// Whether nothing follows in the life of this environment.
    pub(super) fn is_last(&self) -> bool {
        is_last(&self.event)
    }
}

impl Deref for SharedEvent {
    type Target = EnvironmentEvent;

    fn deref(&self) -> &EnvironmentEvent {
        &self.event
    }
}

/// A report is told in the state in which it was made, and ends nothing.
pub(super) fn is_last(event: &EnvironmentEvent) -> bool {
    event.state.is_terminal() && event.report.is_none()
}

/// What a subscriber finds at its place.
#[derive(Debug)]
pub(super) enum Next {
    Event(Arc<SharedEvent>),
    /// The environment ended; the terminal event is behind.
    Ended,
    /// Events are not handed out any more.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Ended,
    Closed,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Topic {
    /// Events that subscribers did not get because they were too slow.
    coalesced: IntCounter,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// The newest events and their numbers, which have gaps where one was dropped.
    log: VecDeque<(u64, Arc<SharedEvent>)>,
    /// Number of the next event.
    next: u64,
    seats: BTreeMap<u64, Option<Waiter>>,
    next_seat: u64,
    round: Option<Round>,
}

/// Somebody who has read all events before number `since`.
#[derive(Debug)]
struct Waiter {
    since: u64,
    waker: Waker,
}

/// A round over the seats, in which everybody who waits is woken. It begins anew, from
/// where it is, with each event.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// The seat to look at next.
    at: u64,
    /// Where it began.
    from: u64,
    /// It has come to the last seat and went on with the first.
    wrapped: bool,
}

/// The place of one subscriber. It must be given back with [`Seat::leave`].
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) topic: Arc<Topic>,
    number: u64,
    /// Number of the next event to read.
    place: u64,
}

impl Topic {
    pub(super) fn new(coalesced: IntCounter) -> Arc<Self> {
        let state = State {
            phase: Phase::Open,
            log: VecDeque::new(),
            next: 0,
            seats: BTreeMap::new(),
            next_seat: 0,
            round: None,
        };
        Arc::new(Self {
            coalesced,
            state: Mutex::new(state),
        })
    }

    /// Takes a seat, from which all events are seen that are published from now on.
    pub(super) fn join(self: &Arc<Self>) -> Seat {
        let mut state = self.lock();
        let number = state.next_seat;
        state.next_seat += 1;
        state.seats.insert(number, None);
        Seat {
            topic: self.clone(),
            number,
            place: state.next,
        }
    }

    /// Adds an event. Answers whether a round begins that was not under way.
    ///
    /// When the log is full the oldest report goes, else the oldest event: the latest
    /// state is what counts. The last event of an environment is never followed by
    /// another, so it stays.
    pub(super) fn publish(&self, event: Arc<SharedEvent>) -> bool {
        let mut state = self.lock();
        if event.is_last() {
            state.phase = Phase::Ended;
        }
        if state.log.len() >= CAPACITY {
            let report = state.log.iter().position(|(_, old)| old.report.is_some());
            state.log.remove(report.unwrap_or(0));
        }
        let number = state.next;
        state.next += 1;
        state.log.push_back((number, event));
        let at = state.round.map_or(0, |round| round.at);
        let round = Round {
            at,
            from: at,
            wrapped: false,
        };
        state.round.replace(round).is_none()
    }

    /// Nothing is published any more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Closed;
        }
        let waiters: Vec<Waiter> = state.seats.values_mut().filter_map(Option::take).collect();
        drop(state);
        waiters.into_iter().for_each(|waiter| waiter.waker.wake());
    }

    /// Wakes up to `count` of those who wait. Answers whether the round goes on.
    pub(super) fn wake_some(&self, count: usize) -> bool {
        let mut waiters = Vec::with_capacity(count);
        let goes_on = self.lock().advance(count, &mut waiters);
        waiters.into_iter().for_each(|waiter| waiter.waker.wake());
        goes_on
    }

    /// Whether nobody is here.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().seats.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole after every operation, so a panicked holder left it usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn advance(&mut self, count: usize, waiters: &mut Vec<Waiter>) -> bool {
        let Some(mut round) = self.round else {
            return false;
        };
        loop {
            for (&number, waiter) in self.seats.range_mut(round.at..) {
                if round.wrapped && number >= round.from {
                    break;
                }
                if waiters.len() == count {
                    self.round = Some(round);
                    return true;
                }
                round.at = number + 1;
                // Who has read everything meanwhile waits for the next event.
                waiters.extend(waiter.take_if(|waiter| waiter.since < self.next));
            }
            if round.wrapped {
                self.round = None;
                return false;
            }
            (round.at, round.wrapped) = (0, true);
        }
    }
}

impl Seat {
    /// The next event, waiting for one.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Next {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        let mut state = self.topic.lock();
        let at = state
            .log
            .partition_point(|(number, _)| *number < self.place);
        if let Some((number, event)) = state.log.get(at) {
            self.topic.coalesced.inc_by(number - self.place);
            self.place = number + 1;
            return Poll::Ready(Next::Event(event.clone()));
        }
        match state.phase {
            Phase::Ended => return Poll::Ready(Next::Ended),
            Phase::Closed => return Poll::Ready(Next::Closed),
            Phase::Open => {}
        }
        if let Some(waiter) = state.seats.get_mut(&self.number) {
            let (since, waker) = (self.place, cx.waker());
            match waiter {
                Some(known) if known.waker.will_wake(waker) => known.since = since,
                _ => {
                    let waker = waker.clone();
                    *waiter = Some(Waiter { since, waker });
                }
            }
        }
        Poll::Pending
    }

    /// Gives the seat back. Answers whether nobody is left.
    pub(super) fn leave(&self) -> bool {
        let mut state = self.topic.lock();
        state.seats.remove(&self.number);
        state.seats.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
    };

    use fuse_model::{EnvironmentId, EventId, GuestReport, State, StepReport};

    use super::*;

    fn topic() -> Arc<Topic> {
        Topic::new(IntCounter::new("coalesced", "Of the test.").unwrap())
    }

    fn event(sequence: i64, state: State) -> Arc<SharedEvent> {
        SharedEvent::new(EnvironmentEvent {
            id: EventId::at(sequence),
            environment_id: EnvironmentId::new("a"),
            state,
            url: String::new(),
            error: String::new(),
            report: None,
            at: fuse_model::now(),
        })
    }

    fn step(sequence: i64) -> Arc<SharedEvent> {
        let mut event = event(sequence, State::Provisioning).event.clone();
        event.report = Some(GuestReport::Step(StepReport {
            index: 1,
            total: 1,
            duration_ms: 1,
            exit_code: 0,
        }));
        SharedEvent::new(event)
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn waits(seat: &mut Seat, woken: &Arc<Woken>) -> bool {
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        pin!(seat.next()).as_mut().poll(&mut cx).is_pending()
    }

    async fn sequences(seat: &mut Seat) -> Vec<i64> {
        let mut seen = Vec::new();
        while let Next::Event(event) = seat.next().await {
            seen.push(event.id.sequence());
        }
        seen
    }

    #[tokio::test]
    async fn a_slow_reader_gets_the_latest_and_the_end() {
        let topic = topic();
        let mut slow = topic.join();
        for sequence in 0..100 {
            topic.publish(event(sequence, State::Running));
        }
        // Who comes later sees what is published later.
        let mut late = topic.join();
        topic.publish(event(100, State::Destroyed));
        assert_eq!(sequences(&mut slow).await, (69..=100).collect::<Vec<_>>());
        assert_eq!(topic.coalesced.get(), 69);
        assert_eq!(sequences(&mut late).await, [100]);
        assert!(matches!(late.next().await, Next::Ended));
    }

    #[tokio::test]
    async fn steps_never_take_the_place_of_a_state() {
        let topic = topic();
        let mut seat = topic.join();
        topic.publish(event(0, State::Provisioning));
        for sequence in 1..100 {
            topic.publish(step(sequence));
        }
        topic.publish(event(100, State::Running));
        topic.close();
        let seen = sequences(&mut seat).await;
        assert_eq!((seen[0], seen[1], seen.len()), (0, 70, 32));
        assert_eq!(seen.last(), Some(&100));
        assert_eq!(topic.coalesced.get(), 69);
        assert!(matches!(seat.next().await, Next::Closed));
    }

    #[test]
    fn everybody_who_waits_is_woken_once_slice_by_slice() {
        let topic = topic();
        let woken = Arc::new(Woken::default());
        let count = || woken.0.load(Ordering::Relaxed);
        let mut seats: Vec<Seat> = (0..10).map(|_| topic.join()).collect();
        assert!(seats.iter_mut().all(|seat| waits(seat, &woken)));
        assert!(topic.publish(event(0, State::Running)));
        assert!(topic.wake_some(4));
        assert_eq!(count(), 4);
        // The next event comes in the middle: it begins no second round.
        assert!(!topic.publish(event(1, State::Draining)));
        // Those who were woken read both and wait again; one leaves, one comes.
        for seat in &mut seats[..4] {
            assert!(!waits(seat, &woken) && !waits(seat, &woken) && waits(seat, &woken));
        }
        assert!(!seats.pop().unwrap().leave());
        let mut late = topic.join();
        assert!(waits(&mut late, &woken));
        assert!(topic.wake_some(5));
        assert_eq!(count(), 9);
        // The four and the late one have nothing to read.
        assert!(!topic.wake_some(5));
        assert_eq!(count(), 9);
        for seat in &mut seats[4..] {
            assert!(!waits(seat, &woken) && !waits(seat, &woken) && waits(seat, &woken));
        }
        let last = seats.pop().unwrap();
        assert!(seats.iter().all(|seat| !seat.leave()));
        assert!(!last.leave() && !topic.is_empty());
        assert!(late.leave() && topic.is_empty());
    }
}
