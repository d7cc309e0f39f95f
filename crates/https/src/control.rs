//! What a client's connection, or a stream of it, is told while it is served: to come to its end.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::task::{Context, Waker};
use tokio::task::AbortHandle;

/// One connection or stream as the core's commands reach it.
pub(crate) struct Control {
    /// The number of its service.
    service: u16,
    /// The number of the backend that its request is at.
    backend: Cell<Option<u16>>,
    /// Whether it is a stream of another connection.
    is_stream: bool,
    /// It takes no request beyond those it has.
    is_draining: Cell<bool>,
    /// Of the task that waits for the client's next request.
    waker: RefCell<Option<Waker>>,
    task: RefCell<Option<AbortHandle>>,
}

impl Control {
    /// Whether the connection is to end with the requests that it has. If not, `cx` is woken when it is.
    pub(crate) fn poll_draining(&self, cx: &mut Context<'_>) -> bool {
        let is_draining = self.is_draining.get();
        if !is_draining {
            let mut waker = self.waker.borrow_mut();
            if waker.as_ref().is_none_or(|held| !held.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
        }
        is_draining
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    /// The backend that its request is at; `None`: it has none.
    pub(crate) fn set_backend(&self, number: Option<u16>) {
        self.backend.set(number);
    }

    fn drain(&self) {
        self.is_draining.set(true);
        self.waker.borrow_mut().take().into_iter().for_each(Waker::wake);
    }
}

/// All connections and streams of a core.
#[derive(Default)]
pub(crate) struct Controls {
    next: Cell<u64>,
    connections: Cell<usize>,
    all: RefCell<HashMap<u64, Rc<Control>>>,
    /// Connections that begin now are to end with their first request.
    drains_all: Cell<bool>,
}

impl Controls {
    /// A connection of a service begins, or a stream: its key, by which it is removed.
    pub(crate) fn add(&self, service: u16, is_stream: bool) -> (u64, Rc<Control>) {
        let key = self.next.replace(self.next.get() + 1);
        let control = Rc::new(Control {
            service,
            backend: Cell::new(None),
            is_stream,
            is_draining: Cell::new(self.drains_all.get()),
            waker: RefCell::default(),
            task: RefCell::default(),
        });
        self.connections.set(self.connections.get() + usize::from(!is_stream));
        self.all.borrow_mut().insert(key, Rc::clone(&control));
        (key, control)
    }

    /// The task that serves the connection.
    pub(crate) fn set_task(&self, key: u64, task: AbortHandle) {
        if let Some(control) = self.all.borrow().get(&key) {
            *control.task.borrow_mut() = Some(task);
        }
    }

    pub(crate) fn remove(&self, key: u64) {
        if let Some(control) = self.all.borrow_mut().remove(&key) {
            self.connections.set(self.connections.get() - usize::from(!control.is_stream));
        }
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.connections.get()
    }

    /// All connections are to end, those that begin later too.
    pub(crate) fn drain_all(&self) {
        self.drains_all.set(true);
        self.drain(|_| false);
    }

    /// Connections of services that do not stay are to end.
    pub(crate) fn drain(&self, stays: impl Fn(u16) -> bool) {
        let all: Vec<_> = self.all.borrow().values().cloned().collect();
        all.iter().filter(|control| !stays(control.service)).for_each(|control| control.drain());
    }

    /// Breaks off connections of these services.
    pub(crate) fn abort(&self, services: &[u16]) {
        self.abort_if(|control| services.contains(&control.service));
    }

    /// Breaks off what waits for one of these backends: of a client of HTTP/1.1 its connection, of HTTP/2 the stream.
    pub(crate) fn end_backends(&self, backends: &[u16]) {
        self.abort_if(|control| control.backend.get().is_some_and(|number| backends.contains(&number)));
    }

    fn abort_if(&self, ends: impl Fn(&Control) -> bool) {
        let all: Vec<_> = self.all.borrow().values().cloned().collect();
        for control in all.iter().filter(|control| ends(control)) {
            control.task.borrow_mut().take().into_iter().for_each(|task| task.abort());
        }
    }
}
