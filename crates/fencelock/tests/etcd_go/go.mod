module fencelock/peer

go 1.24

require go.etcd.io/etcd/client/v3 v3.7.3
