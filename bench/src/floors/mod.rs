//! The floors below our stores: the barest correct calls on a connection with the store's settings.

pub(crate) mod consul;
pub(crate) mod etcd;
pub(crate) mod sql;
