//! What `SHOW PROCESSLIST` shows of a session.

use parking_lot::Mutex;

/// What `SHOW PROCESSLIST` tells of a session beside what the server knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    pub(crate) user: String,
    /// What a statement that takes time is doing. Only such statements are shown: any other is over
    /// before the list is read, and noting it would cost more than running it.
    pub(crate) doing: Option<&'static str>,
    pub(crate) statement: String,
}

/// How much of a statement the process list shows, in bytes.
const SHOWN_MAX: usize = 100;

/// What a session shows. Made when there is something to show for the first time, and kept from then on.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<Option<Box<Shown>>>);

impl Board {
    pub(crate) fn set_user(&self, user: &str) {
        let mut shown = self.0.lock();
        let shown = shown.get_or_insert_default();
        shown.user.clear();
        shown.user.push_str(user);
    }

    /// Runs a statement that takes time, showing what it is and does meanwhile.
    pub(crate) fn showing<R>(
        &self,
        doing: &'static str,
        statement: &str,
        run: impl FnOnce() -> R,
    ) -> R {
        self.show(doing, statement);
        let result = run();
        self.show_nothing();
        result
    }

    pub(crate) fn show(&self, doing: &'static str, statement: &str) {
        let mut shown = self.0.lock();
        let shown = shown.get_or_insert_default();
        shown.doing = Some(doing);
        shown.statement.clear();
        shown
            .statement
            .push_str(&statement[..statement.floor_char_boundary(SHOWN_MAX)]);
    }

    pub(crate) fn show_nothing(&self) {
        if let Some(shown) = &mut *self.0.lock() {
            shown.doing = None;
        }
    }

    pub(crate) fn user(&self) -> String {
        let shown = self.0.lock();
        shown
            .as_ref()
            .map_or_else(String::new, |shown| shown.user.clone())
    }

    pub(crate) fn shown(&self) -> Shown {
        self.0.lock().as_deref().cloned().unwrap_or_default()
    }
}
