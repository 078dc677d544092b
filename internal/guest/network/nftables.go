package network

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// The chain is set as the nft program sets it, by one batch of messages, which the kernel does as a whole or not at
// all. See linux/netfilter/nf_tables.h. Numbers in attributes are big endian.
const (
	nfTable    = "sandlot"
	nfChain    = "output"
	nfPriority = -100 // of changes of the destination
)

// setNFTables makes the table nfTable with one chain, in place of one that is there.
func setNFTables(output []rule) error {
	table := nfText(unix.NFTA_TABLE_NAME, nfTable)
	batch := nfBatch{}
	batch.add(unix.NFNL_MSG_BATCH_BEGIN, 0)
	batch.addTables(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, table) // one that is not there cannot be deleted
	batch.addTables(unix.NFT_MSG_DELTABLE, 0, table)
	batch.addTables(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, table)
	priority := int32(nfPriority)
	batch.addTables(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, nfText(unix.NFTA_CHAIN_TABLE, nfTable),
		nfText(unix.NFTA_CHAIN_NAME, nfChain), nfText(unix.NFTA_CHAIN_TYPE, "nat"),
		nfNested(unix.NFTA_CHAIN_HOOK, nfNumber(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_LOCAL_OUT),
			nfNumber(unix.NFTA_HOOK_PRIORITY, uint32(priority))))
	for _, r := range output {
		batch.addTables(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND,
			nfText(unix.NFTA_RULE_TABLE, nfTable), nfText(unix.NFTA_RULE_CHAIN, nfChain),
			nfNested(unix.NFTA_RULE_EXPRESSIONS, r.expressions()...))
	}
	batch.add(unix.NFNL_MSG_BATCH_END, 0)
	return batch.send()
}

// nfBatch is a batch of messages to the kernel, and the number of answers to it.
type nfBatch struct {
	messages []byte
	answers  int
}

// add adds a message. Kind is one of nfnetlink's.
func (b *nfBatch) add(kind, flags uint16, attributes ...[]byte) {
	body := bytes.Join(attributes, nil)
	m := native.AppendUint32(b.messages, uint32(unix.NLMSG_HDRLEN+4+len(body)))
	m = native.AppendUint16(m, kind)
	m = native.AppendUint16(m, unix.NLM_F_REQUEST|flags)
	m = append(m, make([]byte, 8)...) // sequence and port
	// struct nfgenmsg: the beginning of a batch names the subsystem where others name nothing.
	m = append(m, unix.AF_INET, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES)
	b.messages = append(m, body...)
}

// addTables adds a message for nf_tables, which the kernel answers.
func (b *nfBatch) addTables(kind, flags uint16, attributes ...[]byte) {
	b.add(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_ACK|flags, attributes...)
	b.answers++
}

// send sends the batch and returns the first error of the kernel.
func (b *nfBatch) send() error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if err := unix.Sendto(s, b.messages, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	for range b.answers { // they are there when the batch has been sent
		n, _, err := unix.Recvfrom(s, buf, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			return errors.New("the kernel did not answer")
		}
		if err == nil {
			err = netlinkResult(buf[:n])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Offsets in the headers of IPv4 and UDP.
const (
	ipDestination = 16
	udpPort       = 2
)

// expressions returns the rule as a list of nf_tables' expressions: each ends the rule where it does not fit. All
// use register 1.
func (r rule) expressions() [][]byte {
	operator := uint32(unix.NFT_CMP_EQ)
	if r.inverted {
		operator = unix.NFT_CMP_NEQ
	}
	destination := r.destination.Addr().As4()
	list := [][]byte{
		nfExpression("meta", nfNumber(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO),
			nfNumber(unix.NFTA_META_DREG, unix.NFT_REG_1)),
		nfCompare(unix.NFT_CMP_EQ, []byte{r.protocol}),
		nfLoad(unix.NFT_PAYLOAD_NETWORK_HEADER, ipDestination, uint32(r.destination.Bits()/8)),
		nfCompare(operator, destination[:r.destination.Bits()/8]),
	}
	if r.port != 0 {
		list = append(list, nfLoad(unix.NFT_PAYLOAD_TRANSPORT_HEADER, udpPort, 2),
			nfCompare(unix.NFT_CMP_EQ, binary.BigEndian.AppendUint16(nil, r.port)))
	}
	if r.redirectTo == 0 {
		return append(list, nfImmediate(unix.NFT_REG_VERDICT,
			nfNested(unix.NFTA_DATA_VERDICT, nfNumber(unix.NFTA_VERDICT_CODE, accepted))))
	}
	port := nfAttribute(unix.NFTA_DATA_VALUE, binary.BigEndian.AppendUint16(nil, r.redirectTo))
	return append(list, nfImmediate(unix.NFT_REG_1, port),
		nfExpression("redir", nfNumber(unix.NFTA_REDIR_REG_PROTO_MIN, unix.NFT_REG_1)))
}

// nfLoad returns the expression that loads some bytes of a header.
func nfLoad(header, offset, size uint32) []byte {
	return nfExpression("payload", nfNumber(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1),
		nfNumber(unix.NFTA_PAYLOAD_BASE, header), nfNumber(unix.NFTA_PAYLOAD_OFFSET, offset),
		nfNumber(unix.NFTA_PAYLOAD_LEN, size))
}

// nfCompare returns the expression that compares what was loaded.
func nfCompare(operator uint32, value []byte) []byte {
	return nfExpression("cmp", nfNumber(unix.NFTA_CMP_SREG, unix.NFT_REG_1), nfNumber(unix.NFTA_CMP_OP, operator),
		nfNested(unix.NFTA_CMP_DATA, nfAttribute(unix.NFTA_DATA_VALUE, value)))
}

// nfImmediate returns the expression that sets a register.
func nfImmediate(register uint32, data []byte) []byte {
	return nfExpression("immediate", nfNumber(unix.NFTA_IMMEDIATE_DREG, register),
		nfNested(unix.NFTA_IMMEDIATE_DATA, data))
}

func nfExpression(name string, attributes ...[]byte) []byte {
	return nfNested(unix.NFTA_LIST_ELEM, nfText(unix.NFTA_EXPR_NAME, name),
		nfNested(unix.NFTA_EXPR_DATA, attributes...))
}

// nfAttribute returns an attribute with its padding.
func nfAttribute(kind uint16, value []byte) []byte {
	a := native.AppendUint16(nil, uint16(4+len(value)))
	a = native.AppendUint16(a, kind)
	a = append(a, value...)
	return append(a, make([]byte, -len(a)&3)...)
}

func nfNested(kind uint16, attributes ...[]byte) []byte {
	return nfAttribute(kind|unix.NLA_F_NESTED, bytes.Join(attributes, nil))
}

func nfText(kind uint16, text string) []byte { return nfAttribute(kind, append([]byte(text), 0)) }

func nfNumber(kind uint16, n uint32) []byte {
	return nfAttribute(kind, binary.BigEndian.AppendUint32(nil, n))
}
