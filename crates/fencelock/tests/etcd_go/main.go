// Takes and gives back locks of etcd's own Go client, in the words of fencelock-testkit's peer.rs: the peer of etcd_go.rs.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func must(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

// Adds one to the number in a file, n times, each time under the lock.
func count(session *concurrency.Session, name, file string, n int) {
	mutex := concurrency.NewMutex(session, name)
	for i := 0; i < n; i++ {
		must(mutex.Lock(context.Background()))
		text, err := os.ReadFile(file)
		must(err)
		number, err := strconv.Atoi(strings.TrimSpace(string(text)))
		must(err)
		must(os.WriteFile(file, []byte(strconv.Itoa(number+1)), 0o644))
		must(mutex.Unlock(context.Background()))
	}
}

func main() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}, DialTimeout: 10 * time.Second})
	must(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	must(err)
	fmt.Println("ready")
	var held *concurrency.Mutex
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		words := strings.Fields(orders.Text())
		switch words[0] {
		case "take":
			held = concurrency.NewMutex(session, words[1])
			must(held.Lock(context.Background()))
			fmt.Println("in")
		case "try":
			mutex := concurrency.NewMutex(session, words[1])
			err := mutex.TryLock(context.Background())
			if err == concurrency.ErrLocked {
				fmt.Println("held")
				continue
			}
			must(err)
			held = mutex
			fmt.Println("in")
		case "leave":
			must(held.Unlock(context.Background()))
			fmt.Println("out")
		case "count":
			n, err := strconv.Atoi(words[3])
			must(err)
			count(session, words[1], words[2], n)
			fmt.Println("counted")
		}
	}
}
