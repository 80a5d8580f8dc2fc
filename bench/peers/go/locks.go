// The measured locks: each with its own defaults, waiting as long as it must.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	consul "github.com/hashicorp/consul/api"
	"github.com/redis/go-redis/v9"
	etcd "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// forever is as many tries as nobody makes.
const forever = 1 << 30

// release lets go of what was taken.
type release func() error

// handle is what one worker has of its own.
type handle interface {
	lock(name string) (release, error)
}

// client is what a process has of its own: one connection or pool.
type client interface {
	handle() (handle, error)
	close()
}

func connect(name, addr string) (client, error) {
	switch name {
	case "redsync":
		return newRedsync(addr), nil
	case "redsync-fast":
		// The default looks again after 50 to 250 ms.
		return newRedsync(addr, redsync.WithRetryDelay(time.Millisecond)), nil
	case "redislock":
		// Without a strategy it does not wait at all; this is the one of its documentation.
		return newRedislock(addr, 100*time.Millisecond), nil
	case "redislock-fast":
		return newRedislock(addr, time.Millisecond), nil
	case "etcd-mutex":
		c, err := etcd.New(etcd.Config{Endpoints: []string{addr}, DialTimeout: 5 * time.Second})
		return &etcdClient{c}, err
	case "consul-lock":
		config := consul.DefaultConfig()
		config.Address = addr
		c, err := consul.NewClient(config)
		return &consulClient{c}, err
	}
	return nil, fmt.Errorf("no implementation is called %q", name)
}

type redsyncClient struct {
	redis   *redis.Client
	sync    *redsync.Redsync
	options []redsync.Option
}

func newRedsync(addr string, options ...redsync.Option) *redsyncClient {
	c := redis.NewClient(&redis.Options{Addr: addr})
	options = append(options, redsync.WithTries(forever))
	return &redsyncClient{c, redsync.New(goredis.NewPool(c)), options}
}

func (c *redsyncClient) handle() (handle, error) { return c, nil }
func (c *redsyncClient) close()                  { c.redis.Close() }
func (c *redsyncClient) lock(name string) (release, error) {
	mutex := c.sync.NewMutex(name, c.options...)
	if err := mutex.Lock(); err != nil {
		return nil, err
	}
	return func() error {
		if ok, err := mutex.Unlock(); !ok || err != nil {
			return fmt.Errorf("not released: %v", err)
		}
		return nil
	}, nil
}

type redislockClient struct {
	redis *redis.Client
	locks *redislock.Client
	wait  time.Duration
}

func newRedislock(addr string, wait time.Duration) *redislockClient {
	c := redis.NewClient(&redis.Options{Addr: addr})
	return &redislockClient{c, redislock.New(c), wait}
}

func (c *redislockClient) handle() (handle, error) { return c, nil }
func (c *redislockClient) close()                  { c.redis.Close() }
func (c *redislockClient) lock(name string) (release, error) {
	ctx := context.Background()
	options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(c.wait)}
	for {
		// It gives up after the lease that was asked for.
		lock, err := c.locks.Obtain(ctx, name, 30*time.Second, options)
		if err == nil {
			return func() error { return lock.Release(ctx) }, nil
		}
		if !errors.Is(err, redislock.ErrNotObtained) && !errors.Is(err, context.DeadlineExceeded) {
			return nil, err
		}
	}
}

type etcdClient struct{ etcd *etcd.Client }

// Two workers of one session would have the same key: each needs its own.
type etcdHandle struct{ session *concurrency.Session }

func (c *etcdClient) handle() (handle, error) {
	session, err := concurrency.NewSession(c.etcd)
	return &etcdHandle{session}, err
}
func (c *etcdClient) close() { c.etcd.Close() }
func (h *etcdHandle) lock(name string) (release, error) {
	mutex := concurrency.NewMutex(h.session, "/"+name)
	if err := mutex.Lock(context.Background()); err != nil {
		return nil, err
	}
	return func() error { return mutex.Unlock(context.Background()) }, nil
}

type consulClient struct{ consul *consul.Client }

func (c *consulClient) handle() (handle, error) { return c, nil }
func (c *consulClient) close()                  {}
func (c *consulClient) lock(name string) (release, error) {
	lock, err := c.consul.LockKey(name)
	if err != nil {
		return nil, err
	}
	if lost, err := lock.Lock(nil); err != nil || lost == nil {
		return nil, fmt.Errorf("not locked: %v", err)
	}
	return lock.Unlock, nil
}
