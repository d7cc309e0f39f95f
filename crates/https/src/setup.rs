//! The configuration in force, by which requests are decided.

use crate::backend_tls::BackendTls;
use crate::basic::{BasicAuth, BasicGuard};
use crate::challenge::Challenges;
use crate::cors::Cors;
use crate::pages::{ErrorPage, ServicePages};
use crate::queue::QueueSettings;
use hairpin_core::balance::Tables;
use hairpin_core::config::{Service, ServiceState, Snapshot};
use hairpin_core::flow::Endpoint;
use hairpin_core::l7::config::{Http, Kind, Network, Terminated};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The part of a configuration that the runtimes need.
#[derive(Clone)]
pub struct Configuration {
    /// Services and backends.
    pub snapshot: Arc<Snapshot>,
    /// Maglev tables of its services.
    pub tables: Tables,
    /// The services whose connections end here.
    pub services: Vec<TerminatedService>,
    /// TLS with backends, by the number of the service or group that they are of; those of others get clear text.
    pub backend_tls: HashMap<u16, BackendTls>,
    /// Services and groups, by number, whose backends speak HTTP/2: over TLS those that have it, else by prior knowledge.
    pub http2_backends: HashSet<u16>,
    /// Services and groups, by number, whose requests wait for backends that have as many as they may.
    pub queues: HashMap<u16, QueueSettings>,
    /// CORS of services by number, of each of their routes in order.
    pub cors: HashMap<u16, Vec<Option<Cors>>>,
    /// Error pages of services by number.
    pub pages: HashMap<u16, ServicePages>,
    /// Services, by number, with the users of each of their routes; `None`: requests of the route need no credentials.
    pub basic: HashMap<u16, Vec<Option<Arc<BasicAuth>>>>,
    /// Answers to handshakes of a CA, while there are such.
    pub challenges: Option<Challenges>,
}

/// The part of a terminated service that the snapshot has not.
#[derive(Clone)]
pub struct TerminatedService {
    /// Its number in the snapshot.
    pub number: u16,
    /// Its side of TLS; `None`: its clients speak clear text.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Networks whose connections begin with a header of the PROXY protocol, which says who the client is.
    pub accept_proxy: Arc<[Network]>,
    /// How long a TLS handshake may take, from the connection on.
    pub handshake_timeout: Duration,
    /// HTTP/2 streams that may be open at a time on one connection.
    pub streams_max: u32,
    /// Its name and its check of clients' certificates: where these change, connections that were made before end with the
    /// requests that they have.
    pub policy: Vec<u8>,
}

/// A configuration in force on one core.
pub(crate) struct Setup {
    pub(crate) snapshot: Arc<Snapshot>,
    services: HashMap<Endpoint, TerminatedService>,
    /// The core's own, so that requests share no counter of references.
    backend_tls: HashMap<u16, Rc<BackendTls>>,
    http2_backends: HashSet<u16>,
    queues: HashMap<u16, QueueSettings>,
    cors: HashMap<u16, Vec<Option<Cors>>>,
    pages: HashMap<u16, ServicePages>,
    basic: HashMap<u16, Vec<Option<Rc<BasicGuard>>>>,
    pub(crate) challenges: Option<Challenges>,
}

impl Setup {
    pub(crate) fn new(configuration: &Configuration) -> Setup {
        let snapshot = Arc::clone(&configuration.snapshot);
        let endpoint = |service: &TerminatedService| {
            let there = snapshot.services.get(usize::from(service.number))?;
            let is_served = there.state == ServiceState::Active && there.kind.is_terminated();
            is_served.then_some((there.endpoint, service.clone()))
        };
        let services = configuration.services.iter().filter_map(endpoint).collect();
        let backend_tls =
            configuration.backend_tls.iter().map(|(number, tls)| (*number, Rc::new(tls.clone()))).collect();
        let (http2_backends, challenges) = (configuration.http2_backends.clone(), configuration.challenges.clone());
        let (queues, cors) = (configuration.queues.clone(), configuration.cors.clone());
        let pages = configuration.pages.clone();
        let basic = configuration.basic.iter().map(|(number, routes)| (*number, guards(routes))).collect();
        Setup { snapshot, services, backend_tls, http2_backends, queues, cors, pages, basic, challenges }
    }

    /// The service that clients reach at `endpoint`.
    pub(crate) fn at(&self, endpoint: &Endpoint) -> Option<&TerminatedService> {
        self.services.get(endpoint)
    }

    /// Whether connections of the service of this number go on that `before` has made.
    pub(crate) fn continues(&self, before: &Setup, number: u16) -> bool {
        let policy = |setup: &Setup| {
            setup.services.values().find(|service| service.number == number).map(|service| service.policy.clone())
        };
        self.terminated(number).is_some() && policy(self) == policy(before)
    }

    /// The service of this number.
    pub(crate) fn service(&self, number: u16) -> Option<&Service> {
        self.snapshot.services.get(usize::from(number))
    }

    /// The rules for requests of the service of this number, as long as it is served.
    pub(crate) fn terminated(&self, number: u16) -> Option<&Terminated> {
        match self.service(number).filter(|service| service.state == ServiceState::Active)?.kind {
            Kind::Terminated(ref terminated) => Some(terminated),
            _ => None,
        }
    }

    /// How TLS is spoken with the backends of the service or group of this number; `None`: they get clear text.
    pub(crate) fn backend_tls(&self, number: u16) -> Option<&Rc<BackendTls>> {
        self.backend_tls.get(&number)
    }

    /// Whether the backends of the service or group of this number speak HTTP/2.
    pub(crate) fn has_http2_backends(&self, number: u16) -> bool {
        self.http2_backends.contains(&number)
    }

    /// The queue of the service or group of this number.
    pub(crate) fn queue(&self, number: u16) -> Option<QueueSettings> {
        self.queues.get(&number).copied()
    }

    /// The CORS of a route, by its service's number and its own place there.
    pub(crate) fn cors(&self, service: u16, route: u16) -> Option<&Cors> {
        self.cors.get(&service)?.get(usize::from(route))?.as_ref()
    }

    /// The error page of a status, of a service's request that takes a route.
    pub(crate) fn page(&self, service: u16, route: u16, status: u16) -> Option<&ErrorPage> {
        self.pages.get(&service)?.find(route, status)
    }

    /// Who may ask for a route of a service. `Err`: that is not known, and no request may pass.
    pub(crate) fn guard(&self, number: u16, route: u16) -> Result<Option<&Rc<BasicGuard>>, ()> {
        let Some(routes) = self.basic.get(&number) else { return Ok(None) };
        routes.get(usize::from(route)).map(Option::as_ref).ok_or(())
    }

    pub(crate) fn http(&self, number: u16) -> Option<&Http> {
        Some(&self.terminated(number)?.http)
    }
}

/// A core's own guards of a service's routes. Routes that have the users of the service share one.
fn guards(routes: &[Option<Arc<BasicAuth>>]) -> Vec<Option<Rc<BasicGuard>>> {
    let mut made: Vec<(&Arc<BasicAuth>, Rc<BasicGuard>)> = Vec::new();
    let mut guard = |auth| match made.iter().find(|(other, _)| Arc::ptr_eq(other, auth)) {
        Some((_, guard)) => Rc::clone(guard),
        None => {
            let guard = Rc::new(BasicGuard::new(auth));
            made.push((auth, Rc::clone(&guard)));
            guard
        }
    };
    routes.iter().map(|auth| auth.as_ref().map(&mut guard)).collect()
}
