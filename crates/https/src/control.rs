//! Tells a client's connection, or a stream of it, to come to its end.

use hairpin_core::flow::{Address, Endpoint, FlowKey};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// One connection or stream as the core's commands reach it.
pub(crate) struct Control {
    /// The number of its service.
    service: u16,
    /// The number of the backend that its request is at.
    backend: Cell<Option<u16>>,
    /// The entry by which a client's connection is listed; a stream of one has none.
    listed: Option<Listed>,
    /// Of a stream: the connection.
    parent: Option<Rc<Control>>,
    /// The connection takes no request beyond those it has.
    is_draining: Cell<bool>,
    /// Of the task that waits for the client's next request.
    waker: RefCell<Option<Waker>>,
    task: RefCell<Option<AbortHandle>>,
}

/// The facts that are listed of a client's connection.
struct Listed {
    /// From the client to the VIP.
    key: Cell<FlowKey>,
    protocol: Cell<&'static str>,
    /// The number of the backend that a request was given last.
    backend: Cell<Option<u16>>,
    /// Limits of its client count it.
    is_held: Cell<bool>,
    requests: Cell<u32>,
    began: Instant,
    /// When its last request began or ended.
    active: Cell<Instant>,
}

/// A client's connection, for people.
#[derive(Clone, Debug)]
pub struct ListedConnection {
    /// Its key on its core: grows from connection to connection.
    pub key: u64,
    /// The number of its service.
    pub service: u16,
    /// The client.
    pub client: Endpoint,
    /// The end that it has connected to.
    pub vip: Endpoint,
    /// The number of the backend that a request of it is at; of HTTP/2 any of them.
    pub backend: Option<u16>,
    /// Requests so far.
    pub requests: u32,
    /// `tls` (in its handshake), `http/1.1` or `h2`.
    pub protocol: &'static str,
    /// How long it has been there.
    pub age: Duration,
    /// Since its last request began or ended.
    pub idle: Duration,
}

impl Control {
    /// A request begins.
    pub(crate) fn count_request(&self) {
        if let Some(listed) = &self.listed {
            listed.requests.set(listed.requests.get().wrapping_add(1));
            listed.active.set(Instant::now());
        }
    }

    /// Notes which protocol the client speaks.
    pub(crate) fn set_protocol(&self, protocol: &'static str) {
        self.listed.iter().for_each(|listed| listed.protocol.set(protocol));
    }

    /// A proxy has said which client the connection is of.
    pub(crate) fn set_client(&self, client: Endpoint) {
        self.listed.iter().for_each(|listed| listed.key.set(FlowKey { source: client, ..listed.key.get() }));
    }

    /// Notes that limits of its client count it from now on.
    pub(crate) fn set_held(&self) {
        self.listed.iter().for_each(|listed| listed.is_held.set(true));
    }

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
        let connection = self.parent.as_deref().unwrap_or(self);
        if let Some(listed) = &connection.listed {
            listed.backend.set(number);
            listed.active.set(Instant::now());
        }
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
    all: RefCell<BTreeMap<u64, Rc<Control>>>,
    /// Connections that begin now are to end with their first request.
    drains_all: Cell<bool>,
}

impl Controls {
    /// A client's connection begins: its key, by which it is removed.
    pub(crate) fn add(&self, service: u16, key: FlowKey) -> (u64, Rc<Control>) {
        self.connections.set(self.connections.get() + 1);
        let began = Instant::now();
        let (protocol, requests, active) = (Cell::new("tls"), Cell::new(0), Cell::new(began));
        let (backend, is_held) = (Cell::new(None), Cell::new(false));
        let listed = Listed { key: Cell::new(key), protocol, backend, is_held, requests, began, active };
        self.insert(service, Some(listed), None)
    }

    /// A stream of a connection begins: its key, by which it is removed.
    pub(crate) fn add_stream(&self, connection: &Rc<Control>) -> (u64, Rc<Control>) {
        connection.count_request();
        self.insert(connection.service, None, Some(Rc::clone(connection)))
    }

    /// A copy of a request begins, which is no client's: its key, by which it is removed.
    pub(crate) fn add_copy(&self, service: u16) -> (u64, Rc<Control>) {
        self.insert(service, None, None)
    }

    fn insert(&self, service: u16, listed: Option<Listed>, parent: Option<Rc<Control>>) -> (u64, Rc<Control>) {
        let key = self.next.replace(self.next.get() + 1);
        let control = Rc::new(Control {
            service,
            backend: Cell::new(None),
            listed,
            parent,
            is_draining: Cell::new(self.drains_all.get()),
            waker: RefCell::default(),
            task: RefCell::default(),
        });
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
            self.connections.set(self.connections.get() - usize::from(control.listed.is_some()));
        }
    }

    /// Connections from the key `start` on, so many at most.
    pub(crate) fn list(&self, start: u64, most: usize) -> Vec<ListedConnection> {
        let all = self.all.borrow();
        let listed = all.range(start..).filter_map(|(&key, control)| {
            let listed = control.listed.as_ref()?;
            Some(ListedConnection {
                key,
                service: control.service,
                client: listed.key.get().source,
                vip: listed.key.get().destination,
                backend: listed.backend.get(),
                requests: listed.requests.get(),
                protocol: listed.protocol.get(),
                age: listed.began.elapsed(),
                idle: listed.active.get().elapsed(),
            })
        });
        listed.take(most).collect()
    }

    /// Shows the service and client of each connection that limits of its client count.
    pub(crate) fn each_held(&self, mut each: impl FnMut(u16, &Address)) {
        for control in self.all.borrow().values() {
            if let Some(listed) = control.listed.as_ref().filter(|listed| listed.is_held.get()) {
                each(control.service, &listed.key.get().source.address);
            }
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
