//! What clients do, and who kills them.

use std::collections::VecDeque;

use super::{Command, Conn, Event, World};
use crate::sim::trace::{What, Who};
use crate::sim::{Class, Load, Span, ns};

impl<'a> World<'a> {
    pub(super) fn class_of(&self, client: usize) -> &'a Class {
        &self.scenario.classes[self.clients[client].class]
    }

    pub(super) fn connect(&mut self, client: usize) {
        if !self.busy {
            return;
        }
        let class = self.class_of(client);
        let conn = self.conns.len();
        self.conns.push(Conn {
            client,
            open: true,
            registered: false,
            socket: VecDeque::new(),
            buffer: VecDeque::new(),
            hung_up: false,
            at_end: false,
            killed: false,
            answered: 0,
        });
        let of = self.clients[client].class;
        self.note(Who::Outside, What::Attach { conn, class: of });
        let asks = self.policy.attach(class.high, self.now);
        self.perform(Who::Outside, asks);
        self.clients[client].conn = Some(conn);
        self.clients[client].open = 0;
        self.send_later(client);
    }

    pub(super) fn send_later(&mut self, client: usize) {
        let Some(conn) = self.clients[client].conn else {
            return;
        };
        let pause = match self.class_of(client).load {
            Load::Closed(span) | Load::Open(span) => self.rng.time(span),
            Load::Burst(every) => ns(every) - self.now % ns(every),
        };
        self.later(self.now + pause, Event::Send { client, conn });
    }

    pub(super) fn send(&mut self, client: usize, conn: usize) {
        if !self.busy || self.clients[client].conn != Some(conn) {
            return;
        }
        let class = self.class_of(client);
        for _ in 0..class.pipeline {
            self.commands += 1;
            let command = Command {
                number: self.commands,
                sent: self.now,
            };
            self.conns[conn].socket.push_back(command);
        }
        self.clients[client].open += class.pipeline;
        let commands = class.pipeline;
        self.note(Who::Outside, What::Send { conn, commands });
        self.announce(conn, false);
        if self.rng.chance(class.hang_up_per_mille) {
            self.conns[conn].hung_up = true;
            self.note(Who::Outside, What::HangUp { conn });
            self.announce(conn, true);
            self.come_back(client);
        } else if !matches!(class.load, Load::Closed(_)) {
            self.send_later(client);
        }
    }

    /// The client's connection is no more; it makes another one.
    pub(super) fn come_back(&mut self, client: usize) {
        self.clients[client].conn = None;
        let at = self.now + self.rng.time(Span::us(100, 5_000));
        self.later(at, Event::Connect { client });
    }

    pub(super) fn kill(&mut self) {
        if let (Some(every), true) = (self.scenario.faults.kill_every, self.busy) {
            self.later(self.now + ns(every), Event::Kill);
        }
        let alive: Vec<usize> = (0..self.conns.len())
            .filter(|conn| self.conns[*conn].open && !self.conns[*conn].killed)
            .collect();
        if alive.is_empty() {
            return;
        }
        #[allow(clippy::cast_possible_truncation)] // reduced to an index
        let conn = alive[self.rng.below(alive.len() as u64) as usize];
        self.conns[conn].killed = true;
        self.note(Who::Outside, What::Kill { conn });
        let asks = self.policy.kill(conn, self.now);
        self.perform(Who::Outside, asks);
    }

    /// Commands that somebody still waits for.
    pub(super) fn outstanding(&self) -> usize {
        self.clients
            .iter()
            .filter(|client| client.conn.is_some())
            .map(|client| client.open)
            .sum()
    }
}
