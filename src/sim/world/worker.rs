//! A worker's life, as in `src/group/worker.rs`, and its connections' turns.

use std::collections::VecDeque;

use super::{Command, Doing, LOCK, POLL, READ, Turn, WAKE, WRITE, World};
use crate::group::worker::BATCH;
use crate::sim::cpu::ThreadId;
use crate::sim::policy::Next;
use crate::sim::trace::{Ended, What, Who};
use crate::sim::{Load, Op, ns};

impl World<'_> {
    pub(super) fn step_worker(&mut self, thread: ThreadId) -> Option<u64> {
        let worker = thread - 1;
        match std::mem::replace(&mut self.threads[thread].doing, Doing::Gone) {
            Doing::Asking => self.take(thread, self.now),
            Doing::Polling { block } => self.look_at_poller(thread, block),
            Doing::Returning { events, read } => {
                let count = events.len();
                self.note(Who::Worker(worker), What::Harvest { events: count });
                self.policy.harvested(worker, &events, read);
                self.take(thread, read)
            }
            Doing::Parked => {
                let stays = self.policy.slept(worker, self.now);
                self.note(Who::Worker(worker), What::Slept { stays });
                if stays {
                    self.take(thread, self.now)
                } else {
                    self.sleeps(thread, Doing::Gone)
                }
            }
            Doing::Filling(turn) => {
                self.fill(&turn);
                self.advance(thread, turn)
            }
            Doing::InCommand(turn) => self.advance(thread, turn),
            Doing::Waiting(turn) => {
                self.note(Who::Worker(worker), What::WaitEnd);
                self.policy.wait_end(worker, self.now);
                self.advance(thread, turn)
            }
            Doing::Settling { turn, end, read } => {
                let conn = turn.conn;
                self.note(Who::Worker(worker), What::Settle { conn, end });
                self.policy.settle(worker, conn, (end, turn.calls), read);
                if end == Ended::Closed {
                    self.closed(conn);
                }
                self.take(thread, read)
            }
            doing @ (Doing::Gone
            | Doing::Ticking { .. }
            | Doing::Creating { .. }
            | Doing::Sleeping) => unreachable!("worker {worker} is at {doing:?}"),
        }
    }

    fn take(&mut self, thread: ThreadId, read: u64) -> Option<u64> {
        let worker = thread - 1;
        let who = Who::Worker(worker);
        let (next, asks) = self.policy.take(worker, read);
        let more = match next {
            Next::Run {
                conn,
                close,
                read_closed,
            } => {
                self.note(who, What::Run { conn });
                self.conns[conn].at_end |= read_closed;
                let turn = Turn {
                    conn,
                    close,
                    began: read,
                    calls: 0,
                    command: None,
                    steps: VecDeque::new(),
                };
                self.goes_on(thread, Doing::Filling(turn), READ)
            }
            Next::Poll { block } => {
                self.note(who, What::Poll { block });
                self.goes_on(thread, Doing::Polling { block }, POLL)
            }
            Next::Park { time } => {
                self.note(who, What::Park);
                self.sleep_for(thread, time);
                self.sleeps(thread, Doing::Parked)
            }
            Next::Exit => {
                self.note(who, What::Exit);
                self.sleeps(thread, Doing::Gone)
            }
        };
        self.perform(who, asks);
        more
    }

    fn look_at_poller(&mut self, thread: ThreadId, block: bool) -> Option<u64> {
        if block && self.ready.is_empty() && !self.poller_rung {
            return self.sleeps(thread, Doing::Polling { block });
        }
        self.poller_rung = false;
        let events = self.ready.drain(..self.ready.len().min(BATCH)).collect();
        let read = self.now;
        self.goes_on(thread, Doing::Returning { events, read }, LOCK)
    }

    fn fill(&mut self, turn: &Turn) {
        let conn = &mut self.conns[turn.conn];
        if !conn.registered {
            conn.registered = true;
            // What is there when a socket is registered is an event.
            if !conn.socket.is_empty() || conn.hung_up {
                let hung_up = conn.hung_up;
                self.announce(turn.conn, hung_up);
            }
        }
        let conn = &mut self.conns[turn.conn];
        conn.buffer.append(&mut conn.socket);
    }

    /// Goes on in a turn until it takes time.
    fn advance(&mut self, thread: ThreadId, mut turn: Turn) -> Option<u64> {
        let who = Who::Worker(thread - 1);
        loop {
            let Some(step) = turn.steps.pop_front() else {
                if let Some(command) = turn.command.take() {
                    turn.calls += 1;
                    self.answered(who, turn.conn, command);
                }
                if let Some(end) = self.turn_over(&turn) {
                    let read = self.now;
                    let doing = Doing::Settling { turn, end, read };
                    return self.goes_on(thread, doing, WRITE + LOCK);
                }
                turn.command = self.conns[turn.conn].buffer.pop_front();
                let client = self.conns[turn.conn].client;
                turn.steps.extend(&self.class_of(client).command);
                continue;
            };
            match step {
                Op::Burn(span) => {
                    let burst = self.rng.time(span);
                    return self.goes_on(thread, Doing::InCommand(turn), burst);
                }
                Op::Block(span) => {
                    self.note(who, What::Block);
                    let time = self.rng.time(span);
                    self.sleep_for(thread, time);
                    return self.sleeps(thread, Doing::InCommand(turn));
                }
                Op::Wait(span) => {
                    let time = self.rng.time(span);
                    self.wait_begin(who, thread);
                    self.sleep_for(thread, time);
                    return self.sleeps(thread, Doing::Waiting(turn));
                }
                Op::Lock(lock) => {
                    let lock = self.locks.entry(lock).or_default();
                    if lock.holder.is_none() {
                        lock.holder = Some(thread);
                    } else {
                        lock.queue.push_back(thread);
                        self.wait_begin(who, thread);
                        return self.sleeps(thread, Doing::Waiting(turn));
                    }
                }
                Op::Unlock(number) => {
                    let lock = self.locks.entry(number).or_default();
                    assert_eq!(lock.holder, Some(thread), "lock {number} is not its own");
                    lock.holder = lock.queue.pop_front();
                    if let Some(next) = lock.holder {
                        self.wake(next, WAKE);
                    }
                }
                Op::SayLong => {
                    self.note(who, What::SayLong);
                    let asks = self.policy.say_long(thread - 1, self.now);
                    self.perform(who, asks);
                }
            }
        }
    }

    fn wait_begin(&mut self, who: Who, thread: ThreadId) {
        self.note(who, What::WaitBegin);
        let asks = self.policy.wait_begin(thread - 1, self.now);
        self.perform(who, asks);
    }

    /// Whether the turn is to end before another command, and how.
    fn turn_over(&mut self, turn: &Turn) -> Option<Ended> {
        let pool = &self.scenario.pool;
        let conn = &self.conns[turn.conn];
        let spent = turn.calls >= pool.turn_commands || self.now - turn.began >= ns(pool.turn_time);
        // A running one learns of a kill when it looks, or when it settles.
        if turn.close || (conn.killed && self.rng.chance(500)) {
            Some(Ended::Closed)
        } else if conn.buffer.is_empty() {
            Some(if conn.at_end {
                Ended::Closed
            } else {
                Ended::Idle
            })
        } else {
            (turn.calls > 0 && spent).then_some(Ended::Again)
        }
    }

    fn answered(&mut self, who: Who, conn: usize, command: Command) {
        self.note(who, What::Answer { conn });
        let of = &mut self.conns[conn];
        if command.number <= of.answered {
            let what = format!("connection {conn}: an answer twice, or out of turn");
            self.policy.book.breaks(3, self.now, what);
        }
        self.conns[conn].answered = command.number;
        let client = self.conns[conn].client;
        let class = self.clients[client].class;
        if self.clients[client].conn != Some(conn) {
            self.abandoned[class] += 1;
            return;
        }
        self.latencies[class].push(self.now - command.sent);
        self.clients[client].open -= 1;
        if self.clients[client].open == 0 && matches!(self.class_of(client).load, Load::Closed(_)) {
            self.send_later(client);
        }
    }

    fn closed(&mut self, conn: usize) {
        let of = &mut self.conns[conn];
        of.open = false;
        of.registered = false;
        let (client, left) = (of.client, of.buffer.len() + of.socket.len());
        of.buffer.clear();
        of.socket.clear();
        self.ready.retain(|seen| seen.conn != conn);
        self.abandoned[self.clients[client].class] += left;
        if self.clients[client].conn == Some(conn) {
            self.come_back(client);
        }
    }
}
