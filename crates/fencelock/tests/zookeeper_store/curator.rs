//! Beside Apache Curator, where Java and Maven are at hand.
