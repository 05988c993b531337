"""HDF5 files with damaged bytes over which libhdf5 2.0.0 itself ends, as fuzzing found them."""

import base64
import zlib
from collections.abc import Mapping
from typing import Final

#: By what came of them: it ran for ever, read where nothing is, or freed what was none of its own.
_PACKED: Final[Mapping[str, str]] = {
    "endless": (
        "c-"
        "rgqaB<`1lHy_j0S*oZ76t(ZWbhvfG;~q<F!=;1%?PDCp!5nRm^d?7P68?}05$)H4ul^76%Pq=bp@&Zj|O1&JYa>;"
        "91NpiBmxgtM{rV!fTtq}IKhOfE*&jBdQfODBLf@O^t(eE!dGA<F8x|?jHchw^oyB(J6KWGr6iUlQZxMq`}w;t0!@"
        "RZI|XLc{4okf!6+C7qhJ(_f>AIEM!_f;1*2dTjDk@x3P!;w7`~vr{<&XmMa`#g&DHnU-TnRl>El!0``;)g{I64B6"
        "8`qv(Z+zA!K%7qsq;K0i;6hL2MqH6CyIu)w4CHqyw8yvu6(bkH1`o>Vw$^sJmbZ_D^p)SbKlp;yW~ku)%DBYHhNy"
        "&WOJ2EQaSZpVQ0(^IWA$oOTL?Dt&+`%4*S5H#uiiT7uhbt`uFh~v)rU~?Q*65BTtWQKI`-"
        "P*3|_E*yruFc0Kl=KW_Kd2X5=+HePx1C1|a_*!=nHHiYV}2yL-@Bp24uy4UWo^}=;wr)yrUGvbM_HkimJ-TC!!`x"
        "&K!o4!1{_vq>4pU+?3JM!h;w}VVCADw(u`|vf#W`-"
        "wE_wV0t55o2!%HG~#KbW!KVgG^s_VO3Yvp&t3)Ls!MT({`=!$+Qfd2dg%?}*?3ejyXHkU(+W!kY5`;r-"
        "?2dB)FG{(p0t_WDNXv`u?oG9TvK`tFW#|NFB})1vc>LoVGpv};oJ*3z~cshRRAmIt4Bhx@M!`jLKX$)e()CqE{iD"
        "B^Lqc&*!VS#6h?_r4GN>Mrv}zB+iFzx{n}#kaqo&+E_sx99PX7M<<)@739JIILj)J@F|+g0aWmOE2Ai3PMMaJ)q;"
        "c8PIWL9tI0A4VrfoVc=j$G=PW;D%eBEfE^f2xEW0T;}{3V&~HeJ{vY-"
        "j`i)4@&*8uWl!u5jf%O+dWh5CH!9Es%>)}Ar&jQ3ZWDsV$JNx^9<pfaek%H1CsTC#2Hs9bMEel4$C>RB!U=)mkQ7"
        "{Td!6+C7qhJ(_f}sXr<0I(nk$D&lpyL6oKsE<MacXJ`c$k2L0X{x~JYE1DreFX7;D1FN"
    ),
    "segment": (
        "c-"
        "rlnzb`{k6vxkfPxaMrAtEfDqyr&pFi2X7HZPGN7}zwlI+&=$LJUnX`U{Nu9}q!evq>13kca^TiA0D{@AaOGJ{3O~"
        "@%=34-"
        "E+@7w|V#b?nzGHg4q!+E~qIW8^fSHDx=q=8DB&8Sj`Wy6>R6(rZnZ(GjrAKFXQ|N^>W<9{{G%j$c|1sQ0pAKq%{c"
        "qN6b)rMk)i(I+AQ_*>R%|J(@pUS5SUV{jS!^u~&RfzpV!J3;n*;@4PEJZX}Y3{HA{Uy1F}rl}+i+t7pF-"
        ";A`iAdT@e#(rVJt#&LO$x~ayxb%NND<=z1AMUYwwsU^+(;j+B;yr#>9g;r&>F9gqPnR!7I@yS?hEc(2kg8d`W*jO"
        "YHrI+=j!mQZDa6CHhZ&v4zJjrxTpY=$Wn}0T^^nOcMJ~uS-9qhUx$n&OdTz+uhYK62H^s<S$Sgw>-"
        "<txD>&q=`X{-RC;0000000000;J3JFNbc3GRdsG&ZO-"
        "f!51w!Bm(E>IPu)CR?=&twuAkf{>sO8rX97krrQa`}(vaWW*gXs1m2-"
        "d3<o;ls`^ZJqnz8o(Zk1$Eq)GbU>pKDf0000000000{8dzc#Q8mP5y^&#AeVLh`L8^l04FY$js"
    ),
    "abort": (
        "c-"
        "rln!A`<J5I|>J&<$2>jWOt{@#GN=2M#7+1m$4Fs0Z}aCJ;XW4jeh^&ClRdJaRPgN4V8(ceb>PBv4I^VcuoBvpcid"
        ">6FY)cx^Q<w+n{_2;m%ZU_+7snH;6ZYTiT1P`;oX8%l3Rb0yT<=zoO%Zc+bm*KCHX0}Zv$q$ni^VjXEU&!bf7#Ca"
        "rnH`42#wR~*-a9<|Ah|rhE)c9CRLn_X+{q(U3)986W2jB`hSaM&-"
        "tzoX$p|S;)z?_|(XRv+L;<l`<FKnN1u9RWlywHT_Hw+mtj$TammXlVaP0DV9AP9o^TNrG7Td#YL9J_3}dc9;*y-"
        "xM|e7!y_rq^}-f&ZKJ`u$D2!Gt%Jcea(T$E!H*6zLtU5=Ymhm}J4h%-"
        "8eIf@<6!*%MLr%Zu+&$^2E!*`KUpKdsH#pRQuh>z0_8dLy#$<IDkL(TVNYhNtYqOW$aB=JV>Jea#X-"
        "5Xp5RgWfQ8W&YTqoFWL~U-3yHAl8O}LO>7%K@h}ZRDVSO--rce><8q<Glzb!*Nxf)9OC{&vR|OuQ(v9MXc_"
    ),
}


def damaged(name: str) -> bytes:
    """Return such a file's content; its data set is ``g/data``."""
    return zlib.decompress(base64.b85decode(_PACKED[name]))
